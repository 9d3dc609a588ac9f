//@ clang -cl-std=CL2.0 -O2
//@ check accumulate(sums[640x480], frame[640x480], 0.25) over 640x480
//@ check accumulate(sums[640x480], frame[320x240], 0.25) over 640x480

// Running mean of frames, in an image that is read and written.
kernel void accumulate(read_write image2d_t sums, read_only image2d_t frame, float weight) {
    int2 at = (int2)(get_global_id(0), get_global_id(1));
    float4 old = read_imagef(sums, at);
    write_imagef(sums, at, mix(old, read_imagef(frame, at), weight));
}
