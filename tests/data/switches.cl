// At -O2, the optimiser makes a switch as narrow as its values.
kernel void switches(global int *out, global const uchar *narrow, global const ushort *middle, long wide) {
    size_t i = get_global_id(0);
    switch (narrow[i]) {
    case 1: out[i] = 5; break;
    case 17: out[i] = 7; break;
    case 200: out[i] = i; break;
    }
    switch (middle[i]) {
    case 1: out[i + 1] = 5; break;
    case 60000: out[i + 2] = 7; break;
    case 317: out[i + 3] = i; break;
    }
    switch (wide) {
    case 1: out[i + 4] = 5; break;
    case 0x123456789abcdef: out[i + 5] = 7; break;
    case -3: out[i + 6] = i; break;
    }
}
