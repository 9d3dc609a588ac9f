//@ check embeddings(tokens[512], table[131072], out[32768], 512, 64) over 64x128
//@ check embeddings_clamped(tokens[512], table[131072], out[32768], 512, 64) over 64x128

// Rows of a table that numbers in memory select, without a check and with one.
kernel void embeddings(global const int *tokens, global const float *table, global float *out, int words, int width) {
    int x = get_global_id(0), at = get_global_id(1);
    out[at * width + x] = table[tokens[at] * width + x];
}

kernel void embeddings_clamped(global const int *tokens, global const float *table, global float *out, int words,
                               int width) {
    int x = get_global_id(0), at = get_global_id(1);
    out[at * width + x] = table[clamp(tokens[at], 0, words - 1) * width + x];
}
