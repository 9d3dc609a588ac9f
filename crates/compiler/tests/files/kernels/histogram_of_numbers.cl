//@ check histogram_of_numbers(values[4096], bins[256], 64, 0.0, 10.0) over 1024
//@ guard histogram_of_numbers(values[4096], bins[256], 64, 0.0, 10.0) over 1024

// Histogram of numbers: the bin is calculated from a value, and nothing keeps it below the number of bins.
kernel void histogram_of_numbers(global const float *values, global uint *bins, int count, float low, float high) {
    int bin = (values[get_global_id(0)] - low) / (high - low) * count;
    atomic_inc(&bins[bin]);
}
