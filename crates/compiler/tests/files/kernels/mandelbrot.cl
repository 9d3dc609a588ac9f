//@ check mandelbrot(out[307200], 640, 480, 255) over 640x480 in 32x8
//@ check mandelbrot(out[307200], 641, 480, 255) over 640x480 in 32x8

// Number of iterations of each pixel, as bytes. The loop ends by the data.
kernel void mandelbrot(global uchar *out, int width, int height, int limit) {
    int x = get_global_id(0), y = get_global_id(1);
    float re = 3.0f * x / width - 2.0f, im = 2.0f * y / height - 1.0f;
    float a = 0.0f, b = 0.0f;
    int count = 0;
    while (a * a + b * b < 4.0f && count < limit) {
        float next = a * a - b * b + re;
        b = 2.0f * a * b + im;
        a = next;
        count++;
    }
    out[y * width + x] = count;
}
