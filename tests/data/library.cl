struct Pair {
    float a, b;
};

constant float table[4] = {1, 2, 3, 4};

static __attribute__((noinline)) float helper(float x) { return x * 2.0f; }

float scale(float x, float by) { return helper(x) * by; }

void bump(global float *value, struct Pair *pair) {
    *value += pair->b;
    pair->a += 1.0f;
}

kernel void own(global float *x) { x[get_global_id(0)] = scale(1.0f, 2.0f); }
