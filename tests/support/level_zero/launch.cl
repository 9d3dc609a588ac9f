// Launched in front of each kernel on an imitated GPU. The arguments are the number of the launch and its
// buffers. See driver.c.
#define EIGHT(a, b, c, d, e, f, g, h) \
    global ulong *a, global ulong *b, global ulong *c, global ulong *d, \
    global ulong *e, global ulong *f, global ulong *g, global ulong *h
#define USE(a, b, c, d, e, f, g, h) \
    *a = launch; *b = launch; *c = launch; *d = launch; \
    *e = launch; *f = launch; *g = launch; *h = launch;

kernel void kiln_stand_in(ulong launch,
    EIGHT(a0, a1, a2, a3, a4, a5, a6, a7), EIGHT(b0, b1, b2, b3, b4, b5, b6, b7),
    EIGHT(c0, c1, c2, c3, c4, c5, c6, c7), EIGHT(d0, d1, d2, d3, d4, d5, d6, d7),
    EIGHT(e0, e1, e2, e3, e4, e5, e6, e7)) {
    USE(a0, a1, a2, a3, a4, a5, a6, a7) USE(b0, b1, b2, b3, b4, b5, b6, b7)
    USE(c0, c1, c2, c3, c4, c5, c6, c7) USE(d0, d1, d2, d3, d4, d5, d6, d7)
    USE(e0, e1, e2, e3, e4, e5, e6, e7)
}
