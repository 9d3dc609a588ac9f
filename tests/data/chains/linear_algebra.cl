// Kernels of linear algebra and of simulations, with the shapes of benchmarks for polyhedral compilers.

kernel void times_beta(global float *d, float beta, int ni, int nl) {
    int j = get_global_id(0);
    int i = get_global_id(1);
    if (i < ni && j < nl) {
        d[i * nl + j] *= beta;
    }
}

kernel void add_product(global const float *tmp, global const float *c, global float *d, int ni, int nj, int nl) {
    int j = get_global_id(0);
    int i = get_global_id(1);
    if (i < ni && j < nl) {
        for (int k = 0; k < nj; k++) {
            d[i * nl + j] += tmp[i * nj + k] * c[k * nl + j];
        }
    }
}

kernel void times_vector(global const float *a, global const float *x, global float *y, int n) {
    int i = get_global_id(0);
    if (i < n) {
        float sum = 0.0f;
        for (int j = 0; j < n; j++) {
            sum += a[i * n + j] * x[j];
        }
        y[i] = sum;
    }
}

kernel void times_vector_of_columns(global const float *a, global const float *r, global float *s, int n) {
    int j = get_global_id(0);
    if (j < n) {
        s[j] = 0.0f;
        for (int i = 0; i < n; i++) {
            s[j] += a[i * n + j] * r[i];
        }
    }
}

kernel void weighted_sum(global const float *x, global const float *y, global float *z, float alpha, float beta, int n) {
    int i = get_global_id(0);
    if (i < n) {
        z[i] = alpha * x[i] + beta * y[i];
    }
}

kernel void jacobi_1d(global const float *a, global float *b, int n) {
    int i = get_global_id(0);
    if (i > 0 && i < n - 1) {
        b[i] = 0.33333f * (a[i - 1] + a[i] + a[i + 1]);
    }
}

kernel void jacobi_2d(global const float *a, global float *b, int n) {
    int j = get_global_id(0);
    int i = get_global_id(1);
    if (i > 0 && i < n - 1 && j > 0 && j < n - 1) {
        b[i * n + j] =
            0.2f * (a[i * n + j] + a[i * n + j - 1] + a[i * n + j + 1] + a[(i + 1) * n + j] + a[(i - 1) * n + j]);
    }
}

kernel void distance_of(global const float *a, global const float *b, global float *d, int n) {
    int j = get_global_id(0);
    int i = get_global_id(1);
    if (i < n && j < n) {
        d[i * n + j] = fabs(a[i * n + j] - b[i * n + j]);
    }
}

kernel void field_y(global const float *source, global float *ey, global const float *hz, int t, int nx, int ny) {
    int j = get_global_id(0);
    int i = get_global_id(1);
    if (i < nx && j < ny) {
        if (i == 0) {
            ey[i * ny + j] = source[t];
        } else {
            ey[i * ny + j] = ey[i * ny + j] - 0.5f * (hz[i * ny + j] - hz[(i - 1) * ny + j]);
        }
    }
}

kernel void field_x(global float *ex, global const float *hz, int nx, int ny) {
    int j = get_global_id(0);
    int i = get_global_id(1);
    if (i < nx && j < ny && j > 0) {
        ex[i * ny + j] = ex[i * ny + j] - 0.5f * (hz[i * ny + j] - hz[i * ny + j - 1]);
    }
}

kernel void energy(global const float *ex, global const float *ey, global float *e, int nx, int ny) {
    int j = get_global_id(0);
    int i = get_global_id(1);
    if (i < nx && j < ny) {
        e[i * ny + j] = ex[i * ny + j] * ex[i * ny + j] + ey[i * ny + j] * ey[i * ny + j];
    }
}

kernel void convolution(global const float *a, global float *b, int ni, int nj) {
    int j = get_global_id(0);
    int i = get_global_id(1);
    if (i < ni - 1 && j < nj - 1 && i > 0 && j > 0) {
        b[i * nj + j] = 0.2f * a[(i - 1) * nj + (j - 1)] - 0.3f * a[(i - 1) * nj + j] + 0.4f * a[(i - 1) * nj + (j + 1)]
            + 0.5f * a[i * nj + (j - 1)] + 0.6f * a[i * nj + j] + 0.7f * a[i * nj + (j + 1)]
            - 0.8f * a[(i + 1) * nj + (j - 1)] - 0.9f * a[(i + 1) * nj + j] + 0.1f * a[(i + 1) * nj + (j + 1)];
    }
}

// Only elements inside the border.
kernel void rectify_inside(global const float *b, global float *c, int ni, int nj) {
    int j = get_global_id(0);
    int i = get_global_id(1);
    if (i < ni - 1 && j < nj - 1 && i > 0 && j > 0) {
        c[i * nj + j] = fmax(b[i * nj + j], 0.0f);
    }
}
