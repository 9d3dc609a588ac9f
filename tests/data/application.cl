// Imports two functions and a table, which library.cl exports.
struct Pair {
    float a, b;
};

extern constant float table[4];
float scale(float x, float by);
void bump(global float *value, struct Pair *pair);

// Also the name of a function of the library's own.
static __attribute__((noinline)) float helper(float x) { return x + 1.0f; }

kernel void run(global float *x, float by) {
    size_t i = get_global_id(0);
    struct Pair pair = {x[i], by};
    bump(x + i, &pair);
    x[i] = scale(helper(x[i]), by) + pair.a + table[i & 3];
}
