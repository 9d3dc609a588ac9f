//@ check softmax(in[400000], out[400000], 1000) over 6400 in 64
//@ check softmax(in[400000], out[400000], 1000) over 6464 in 64

// Softmax of rows: a work-group for each row, which finds its maximum and its sum in local memory.
kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void softmax(global const float *in, global float *out, int columns) {
    local float parts[64];
    int item = get_local_id(0), row = get_group_id(0) * columns;
    float most = -INFINITY;
    for (int i = item; i < columns; i += 64)
        most = fmax(most, in[row + i]);
    parts[item] = most;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int d = 32; d > 0; d >>= 1) {
        if (item < d)
            parts[item] = fmax(parts[item], parts[item + d]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    most = parts[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    float sum = 0.0f;
    for (int i = item; i < columns; i += 64)
        sum += exp(in[row + i] - most);
    parts[item] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int d = 32; d > 0; d >>= 1) {
        if (item < d)
            parts[item] += parts[item + d];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = item; i < columns; i += 64)
        out[row + i] = exp(in[row + i] - most) / parts[0];
}
