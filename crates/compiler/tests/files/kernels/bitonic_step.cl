//@ check bitonic_step(keys[4096], 8, 64) over 1024 in 64
//@ check bitonic_step(keys[4096], 1024, 2048) over 1024 in 64

// Step of a bitonic sort: each pair of elements is compared by the lower one.
kernel void bitonic_step(global uint *keys, uint distance, uint size) {
    uint i = get_global_id(0), partner = i ^ distance;
    if (partner <= i)
        return;
    uint one = keys[i], other = keys[partner];
    bool is_ascending = (i & size) == 0;
    if ((one > other) == is_ascending) {
        keys[i] = other;
        keys[partner] = one;
    }
}
