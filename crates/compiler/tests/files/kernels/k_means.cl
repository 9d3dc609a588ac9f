//@ check assign(points[32000], centres[320], labels[4000], 1000, 10, 8) over 1024 in 64
//@ check add_up(points[32000], labels[4000], sums[320], counts[40], 1000, 10, 8) over 1024 in 64

// Step of the k-means algorithm: the nearest centre of each point, and the sums of the points at each centre.
kernel void assign(global const float *points, global const float *centres, global int *labels, int n, int k, int d) {
    int i = get_global_id(0);
    if (i >= n)
        return;
    float nearest = FLT_MAX;
    int label = 0;
    for (int c = 0; c < k; c++) {
        float distance = 0.0f;
        for (int j = 0; j < d; j++) {
            float difference = points[i * d + j] - centres[c * d + j];
            distance += difference * difference;
        }
        if (distance < nearest) {
            nearest = distance;
            label = c;
        }
    }
    labels[i] = label;
}

kernel void add_up(global const float *points, global const int *labels, global int *sums, global int *counts,
                   int n, int k, int d) {
    int i = get_global_id(0);
    if (i >= n)
        return;
    int label = labels[i];
    atomic_inc(&counts[label]);
    for (int j = 0; j < d; j++)
        atomic_add(&sums[label * d + j], (int)points[i * d + j]);
}
