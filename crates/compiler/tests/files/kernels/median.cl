//@ check median(in[65536], out[65536], 256, 256) over 256x256

// Median of nine bytes, which are sorted in an array of the work-item.
kernel void median(global const uchar *in, global uchar *out, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    uchar window[9];
    int count = 0;
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++)
            window[count++] = in[clamp(y + dy, 0, height - 1) * width + clamp(x + dx, 0, width - 1)];
    for (int i = 1; i < 9; i++) {
        uchar value = window[i];
        int j = i - 1;
        while (j >= 0 && window[j] > value) {
            window[j + 1] = window[j];
            j--;
        }
        window[j + 1] = value;
    }
    out[y * width + x] = window[4];
}
