//@ emit
//@ check step(state[16384], 16) over 1024

uint next(uint value) {
    value ^= value << 13;
    value ^= value >> 17;
    return value ^ value << 5;
}

// Random numbers of each work-item, by a loop and a helper function.
kernel void step(global uint4 *state, int count) {
    uint4 own = state[get_global_id(0)];
    for (int i = 0; i < count; i++) {
        own.x = next(own.x);
        own.yzw = own.xyz;
    }
    state[get_global_id(0)] = own;
}
