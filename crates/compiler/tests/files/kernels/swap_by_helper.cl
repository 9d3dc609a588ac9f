//@ clang -cl-std=CL2.0 -O0
//@ check sort_pairs(keys[8192], local:512, 2048) over 1024 in 64
//@ check sort_pairs(keys[8188], local:512, 2048) over 1024 in 64
//@ emit

// Helper with pointers to any address space, in code that no compiler optimised.
void order(int *one, int *other) {
    if (*one > *other) {
        int kept = *one;
        *one = *other;
        *other = kept;
    }
}

kernel void sort_pairs(global int *keys, local int *copy, int n) {
    int i = get_global_id(0), item = get_local_id(0);
    if (2 * i + 1 < n) {
        order(&keys[2 * i], &keys[2 * i + 1]);
        copy[2 * item] = keys[2 * i];
        copy[2 * item + 1] = keys[2 * i + 1];
        order(&copy[2 * item], &copy[2 * item + 1]);
    }
}
