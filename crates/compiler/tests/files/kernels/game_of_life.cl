//@ check game_of_life(in[65536], out[65536], 256, 256) over 256x256 in 16x16
//@ check game_of_life(in[65536], out[65536], 0, 256) over 256x256 in 16x16

// Generation of a board whose edges are joined: neighbours are found modulo its size.
kernel void game_of_life(global const uchar *in, global uchar *out, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    int alive = 0;
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++)
            alive += in[(y + dy + height) % height * width + (x + dx + width) % width];
    uchar own = in[y * width + x];
    out[y * width + x] = alive == 3 || (own && alive == 4);
}
