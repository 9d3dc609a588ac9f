//@ check matrix_product_in_tiles(a[65536], b[65536], c[65536], 128) over 128x128 in 16x16
//@ check matrix_product_in_tiles(a[65536], b[65536], c[65532], 128) over 128x128 in 16x16
//@ check matrix_product_in_tiles(a[40000], b[40000], c[40000], 100) over 112x112 in 16x16

// Product of two square matrices through tiles in local memory. The size has to be a multiple of that of a tile.
kernel void matrix_product_in_tiles(global const float *a, global const float *b, global float *c, int n) {
    local float tile_a[16][16], tile_b[16][16];
    int column = get_global_id(0), row = get_global_id(1);
    int x = get_local_id(0), y = get_local_id(1);
    float sum = 0.0f;
    for (int start = 0; start < n; start += 16) {
        tile_a[y][x] = a[row * n + start + x];
        tile_b[y][x] = b[(start + y) * n + column];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int i = 0; i < 16; i++)
            sum += tile_a[y][i] * tile_b[i][x];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    c[row * n + column] = sum;
}
