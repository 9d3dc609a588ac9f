//@ fuse over 256x128 dead rows
//@   blur_rows(in[131072], rows[131072], 256)
//@   blur_columns(rows[131072], out[131072], 256, 128)
//@ contains not fused
//@ fuse over 256x128 dead rows form inlined,tiles:16x16,strips:16,windows:16
//@   blur_rows(in[131072], rows[131072], 256)
//@   blur_columns(rows[131072], out[131072], 256, 128)
//@ count 4 internalized
//@ limits blur_columns(rows[131072], out[131072], 256, 128) over 256x128

// Two passes of a blur. The second one needs what other work-items of the first one computed.
kernel void blur_rows(global const float *in, global float *out, int width) {
    int x = get_global_id(0), y = get_global_id(1);
    float sum = 0.0f;
    for (int d = -2; d <= 2; d++)
        sum += in[y * width + clamp(x + d, 0, width - 1)];
    out[y * width + x] = sum / 5.0f;
}

kernel void blur_columns(global const float *in, global float *out, int width, int height) {
    int x = get_global_id(0), y = get_global_id(1);
    float sum = 0.0f;
    for (int d = -2; d <= 2; d++)
        sum += in[clamp(y + d, 0, height - 1) * width + x];
    out[y * width + x] = sum / 5.0f;
}
