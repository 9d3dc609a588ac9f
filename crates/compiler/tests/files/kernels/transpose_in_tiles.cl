//@ check transpose_in_tiles(in[262144], out[262144], 256, 256) over 256x256 in 16x16
//@ check transpose_in_tiles(in[260000], out[260000], 325, 200) over 336x208 in 16x16
//@ check transpose_in_tiles(in[262144], out[262144], 256, 256) over 256x256

// Transposed matrix through a tile in local memory, whose rows are padded against bank conflicts.
kernel void transpose_in_tiles(global const float *in, global float *out, int width, int height) {
    local float tile[16][17];
    int x = get_global_id(0), y = get_global_id(1);
    int column = get_local_id(0), row = get_local_id(1);
    if (x < width && y < height)
        tile[row][column] = in[y * width + x];
    barrier(CLK_LOCAL_MEM_FENCE);
    int to_x = get_group_id(1) * 16 + column, to_y = get_group_id(0) * 16 + row;
    if (to_x < height && to_y < width)
        out[to_y * height + to_x] = tile[column][row];
}
