// Kernels of linear algebra, statistics and stencils, with the shapes of benchmarks for polyhedral compilers. Ranges are
// rounded up to whole work-groups, so that each kernel guards its ids.

kernel void convolve_plane(global const float *in, global float *out, int rows, int columns) {
    int x = get_global_id(0), y = get_global_id(1);
    if (y > 0 && y < rows - 1 && x > 0 && x < columns - 1) {
        float sum = 0.2f * in[(y - 1) * columns + (x - 1)] - 0.3f * in[y * columns + (x - 1)];
        sum += 0.4f * in[(y + 1) * columns + (x - 1)] + 0.5f * in[(y - 1) * columns + x];
        sum += 0.6f * in[y * columns + x] - 0.7f * in[(y + 1) * columns + x];
        sum += 0.8f * in[(y - 1) * columns + (x + 1)] - 0.9f * in[y * columns + (x + 1)];
        out[y * columns + x] = sum + 0.1f * in[(y + 1) * columns + (x + 1)];
    }
}

kernel void convolve_volume(global const float *in, global float *out, int ni, int nj, int nk, int i) {
    int k = get_global_id(0), j = get_global_id(1);
    if (i > 0 && i < ni - 1 && j > 0 && j < nj - 1 && k > 0 && k < nk - 1) {
        float sum = 2.0f * in[(i - 1) * nk * nj + (j - 1) * nk + (k - 1)];
        sum += 4.0f * in[(i + 1) * nk * nj + (j - 1) * nk + (k - 1)];
        sum += 5.0f * in[i * nk * nj + (j + 1) * nk + k] + in[i * nk * nj + j * nk + (k + 1)];
        sum += 3.0f * in[(i + 1) * nk * nj + (j + 1) * nk + (k + 1)];
        out[i * nk * nj + j * nk + k] = sum;
    }
}

kernel void product_first(global const float *a, global const float *b, global float *e, int ni, int nj, int nk) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < ni && j < nj) {
        e[i * nj + j] = 0.0f;
        for (int k = 0; k < nk; k++)
            e[i * nj + j] += a[i * nk + k] * b[k * nj + j];
    }
}

kernel void product_second(global const float *c, global const float *d, global float *f, int nj, int nl, int nm) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < nj && j < nl) {
        f[i * nl + j] = 0.0f;
        for (int k = 0; k < nm; k++)
            f[i * nl + j] += c[i * nm + k] * d[k * nl + j];
    }
}

kernel void product_third(global const float *e, global const float *f, global float *g, int ni, int nj, int nl) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < ni && j < nl) {
        g[i * nl + j] = 0.0f;
        for (int k = 0; k < nj; k++)
            g[i * nl + j] += e[i * nj + k] * f[k * nl + j];
    }
}

kernel void two_products_first(global float *tmp, global const float *a, global const float *b, int ni, int nj, int nk,
                               float alpha) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < ni && j < nj) {
        tmp[i * nj + j] = 0.0f;
        for (int k = 0; k < nk; k++)
            tmp[i * nj + j] += alpha * a[i * nk + k] * b[k * nj + j];
    }
}

kernel void two_products_second(global const float *tmp, global const float *c, global float *d, int ni, int nl, int nj,
                                float beta) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < ni && j < nl) {
        d[i * nl + j] *= beta;
        for (int k = 0; k < nj; k++)
            d[i * nl + j] += tmp[i * nj + k] * c[k * nl + j];
    }
}

kernel void rows_times_vector(global const float *a, global const float *x, global float *tmp, int nx, int ny) {
    int i = get_global_id(0);
    if (i < nx) {
        tmp[i] = 0.0f;
        for (int j = 0; j < ny; j++)
            tmp[i] += a[i * ny + j] * x[j];
    }
}

kernel void columns_times_vector(global const float *a, global float *y, global const float *tmp, int nx, int ny) {
    int j = get_global_id(0);
    if (j < ny) {
        y[j] = 0.0f;
        for (int i = 0; i < nx; i++)
            y[j] += a[i * ny + j] * tmp[i];
    }
}

kernel void conjugate_rows(global const float *a, global const float *p, global float *q, int nx, int ny) {
    int i = get_global_id(0);
    if (i < nx) {
        q[i] = 0.0f;
        for (int j = 0; j < ny; j++)
            q[i] += a[i * ny + j] * p[j];
    }
}

kernel void conjugate_columns(global const float *a, global const float *r, global float *s, int nx, int ny) {
    int j = get_global_id(0);
    if (j < ny) {
        s[j] = 0.0f;
        for (int i = 0; i < nx; i++)
            s[j] += a[i * ny + j] * r[i];
    }
}

kernel void means(global float *mean, global const float *data, float count, int m, int n) {
    int j = get_global_id(0);
    if (j < m) {
        mean[j] = 0.0f;
        for (int i = 0; i < n; i++)
            mean[j] += data[i * m + j];
        mean[j] /= count;
    }
}

kernel void deviations(global const float *mean, global float *deviation, global const float *data, float count, int m,
                       int n) {
    int j = get_global_id(0);
    if (j < m) {
        deviation[j] = 0.0f;
        for (int i = 0; i < n; i++)
            deviation[j] += (data[i * m + j] - mean[j]) * (data[i * m + j] - mean[j]);
        deviation[j] = sqrt(deviation[j] / count);
        if (deviation[j] <= 0.005f)
            deviation[j] = 1.0f;
    }
}

kernel void normalize_data(global const float *mean, global const float *deviation, global float *data, float count,
                           int m, int n) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < n && j < m) {
        data[i * m + j] -= mean[j];
        data[i * m + j] /= sqrt(count) * deviation[j];
    }
}

kernel void correlations(global float *matrix, global const float *data, int m, int n) {
    int j1 = get_global_id(0);
    if (j1 < m - 1) {
        matrix[j1 * m + j1] = 1.0f;
        for (int j2 = j1 + 1; j2 < m; j2++) {
            matrix[j1 * m + j2] = 0.0f;
            for (int i = 0; i < n; i++)
                matrix[j1 * m + j2] += data[i * m + j1] * data[i * m + j2];
            matrix[j2 * m + j1] = matrix[j1 * m + j2];
        }
    }
}

kernel void means_to_subtract(global float *mean, global const float *data, float count, int m, int n) {
    int j = get_global_id(0);
    if (j < m) {
        float sum = 0.0f;
        for (int i = 0; i < n; i++)
            sum += data[i * m + j];
        mean[j] = sum / count;
    }
}

kernel void subtract_means(global const float *mean, global float *data, int m, int n) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < n && j < m)
        data[i * m + j] -= mean[j];
}

kernel void covariances(global float *matrix, global const float *data, int m, int n) {
    int j1 = get_global_id(0);
    if (j1 < m) {
        for (int j2 = j1; j2 < m; j2++) {
            matrix[j1 * m + j2] = 0.0f;
            for (int i = 0; i < n; i++)
                matrix[j1 * m + j2] += data[i * m + j1] * data[i * m + j2];
            matrix[j2 * m + j1] = matrix[j1 * m + j2];
        }
    }
}

kernel void analysis_sums(int nr, int nq, int np, global const float *a, global const float *c, global float *sum,
                          int r) {
    int p = get_global_id(0), q = get_global_id(1);
    if (p < np && q < nq) {
        sum[r * nq * np + q * np + p] = 0.0f;
        for (int s = 0; s < np; s++)
            sum[r * nq * np + q * np + p] += a[r * nq * np + q * np + s] * c[s * np + p];
    }
}

kernel void analysis_copy(int nr, int nq, int np, global float *a, global const float *sum, int r) {
    int p = get_global_id(0), q = get_global_id(1);
    if (p < np && q < nq)
        a[r * nq * np + q * np + p] = sum[r * nq * np + q * np + p];
}

kernel void field_y(global const float *source, global float *ey, global const float *hz, int t, int nx, int ny) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < nx && j < ny) {
        if (i == 0)
            ey[i * ny + j] = source[t];
        else
            ey[i * ny + j] -= 0.5f * (hz[i * ny + j] - hz[(i - 1) * ny + j]);
    }
}

kernel void field_x(global float *ex, global const float *hz, int nx, int ny) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < nx && j < ny && j > 0)
        ex[i * (ny + 1) + j] -= 0.5f * (hz[i * ny + j] - hz[i * ny + (j - 1)]);
}

kernel void field_z(global const float *ex, global const float *ey, global float *hz, int nx, int ny) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < nx && j < ny)
        hz[i * ny + j] -= 0.7f * (ex[i * (ny + 1) + (j + 1)] - ex[i * (ny + 1) + j] + ey[(i + 1) * ny + j] -
                                  ey[i * ny + j]);
}

kernel void matrix_product(global const float *a, global const float *b, global float *c, float alpha, float beta,
                           int ni, int nj, int nk) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < ni && j < nj) {
        c[i * nj + j] *= beta;
        for (int k = 0; k < nk; k++)
            c[i * nj + j] += alpha * a[i * nk + k] * b[k * nj + j];
    }
}

kernel void rank_two_update(global float *a, global const float *v1, global const float *v2, global const float *u1,
                            global const float *u2, int n) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < n && j < n)
        a[i * n + j] += u1[i] * v1[j] + u2[i] * v2[j];
}

kernel void transposed_product(global const float *a, global float *x, global const float *y, global const float *z,
                               float beta, int n) {
    int i = get_global_id(0);
    if (i < n) {
        for (int j = 0; j < n; j++)
            x[i] += beta * a[j * n + i] * y[j];
        x[i] += z[i];
    }
}

kernel void vector_product(global const float *a, global const float *x, global float *w, float alpha, int n) {
    int i = get_global_id(0);
    if (i < n)
        for (int j = 0; j < n; j++)
            w[i] += alpha * a[i * n + j] * x[j];
}

kernel void sum_of_products(global const float *a, global const float *b, global const float *x, global float *y,
                            global float *tmp, float alpha, float beta, int n) {
    int i = get_global_id(0);
    if (i < n) {
        for (int j = 0; j < n; j++) {
            tmp[i] += a[i * n + j] * x[j];
            y[i] += b[i * n + j] * x[j];
        }
        y[i] = alpha * tmp[i] + beta * y[i];
    }
}

kernel void column_norm(global const float *a, global float *r, int k, int m, int n) {
    if (get_global_id(0) == 0) {
        float norm = 0.0f;
        for (int i = 0; i < m; i++)
            norm += a[i * n + k] * a[i * n + k];
        r[k * n + k] = sqrt(norm);
    }
}

kernel void normalize_column(global const float *a, global const float *r, global float *q, int k, int m, int n) {
    int i = get_global_id(0);
    if (i < m)
        q[i * n + k] = a[i * n + k] / r[k * n + k];
}

kernel void subtract_column(global float *a, global float *r, global const float *q, int k, int m, int n) {
    int j = get_global_id(0);
    if (j > k && j < n) {
        r[k * n + j] = 0.0f;
        for (int i = 0; i < m; i++)
            r[k * n + j] += q[i * n + k] * a[i * n + j];
        for (int i = 0; i < m; i++)
            a[i * n + j] -= q[i * n + k] * r[k * n + j];
    }
}

kernel void line_stencil(global const float *a, global float *b, int n) {
    int i = get_global_id(0);
    if (i > 1 && i < n - 1)
        b[i] = 0.33333f * (a[i - 1] + a[i] + a[i + 1]);
}

kernel void line_copy(global float *a, global const float *b, int n) {
    int j = get_global_id(0);
    if (j > 1 && j < n - 1)
        a[j] = b[j];
}

kernel void plane_stencil(global const float *a, global float *b, int n) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i > 0 && i < n - 1 && j > 0 && j < n - 1)
        b[i * n + j] = 0.2f * (a[i * n + j] + a[i * n + (j - 1)] + a[i * n + (1 + j)] + a[(1 + i) * n + j] +
                               a[(i - 1) * n + j]);
}

kernel void plane_copy(global float *a, global const float *b, int n) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i > 0 && i < n - 1 && j > 0 && j < n - 1)
        a[i * n + j] = b[i * n + j];
}

kernel void pivot_row(global float *a, int k, int n) {
    int j = get_global_id(0);
    if (j > k && j < n)
        a[k * n + j] /= a[k * n + k];
}

kernel void eliminate(global float *a, int k, int n) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i > k && j > k && i < n && j < n)
        a[i * n + j] -= a[i * n + k] * a[k * n + j];
}

kernel void vector_and_rows(global const float *a, global float *x, global const float *y, int n) {
    int i = get_global_id(0);
    if (i < n)
        for (int j = 0; j < n; j++)
            x[i] += a[i * n + j] * y[j];
}

kernel void vector_and_columns(global const float *a, global float *x, global const float *y, int n) {
    int i = get_global_id(0);
    if (i < n)
        for (int j = 0; j < n; j++)
            x[i] += a[j * n + i] * y[j];
}

kernel void symmetric_two(global const float *a, global const float *b, global float *c, float alpha, float beta, int m,
                          int n) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < n && j < n) {
        c[i * n + j] *= beta;
        for (int k = 0; k < m; k++)
            c[i * n + j] += alpha * a[i * m + k] * b[j * m + k] + alpha * b[i * m + k] * a[j * m + k];
    }
}

kernel void symmetric_one(global const float *a, global float *c, float alpha, float beta, int m, int n) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < n && j < n) {
        c[i * n + j] *= beta;
        for (int k = 0; k < m; k++)
            c[i * n + j] += alpha * a[i * m + k] * a[j * m + k];
    }
}

kernel void rows_forward(global const float *a, global float *b, global float *x, int n) {
    int i = get_global_id(0);
    if (i < n)
        for (int j = 1; j < n; j++) {
            x[i * n + j] -= x[i * n + (j - 1)] * a[i * n + j] / b[i * n + (j - 1)];
            b[i * n + j] -= a[i * n + j] * a[i * n + j] / b[i * n + (j - 1)];
        }
}

kernel void rows_end(global const float *b, global float *x, int n) {
    int i = get_global_id(0);
    if (i < n)
        x[i * n + (n - 1)] /= b[i * n + (n - 1)];
}

kernel void rows_backward(global const float *a, global const float *b, global float *x, int n) {
    int i = get_global_id(0);
    if (i < n)
        for (int j = 0; j < n - 2; j++)
            x[i * n + (n - j - 2)] =
                (x[i * n + (n - 2 - j)] - x[i * n + (n - 2 - j - 1)] * a[i * n + (n - j - 3)]) / b[i * n + (n - 3 - j)];
}

kernel void columns_forward(global const float *a, global float *b, global float *x, int i, int n) {
    int j = get_global_id(0);
    if (j < n) {
        x[i * n + j] -= x[(i - 1) * n + j] * a[i * n + j] / b[(i - 1) * n + j];
        b[i * n + j] -= a[i * n + j] * a[i * n + j] / b[(i - 1) * n + j];
    }
}

kernel void columns_end(global const float *b, global float *x, int n) {
    int j = get_global_id(0);
    if (j < n)
        x[(n - 1) * n + j] /= b[(n - 1) * n + j];
}

kernel void columns_backward(global const float *a, global const float *b, global float *x, int i, int n) {
    int j = get_global_id(0);
    if (j < n)
        x[(n - 2 - i) * n + j] =
            (x[(n - 2 - i) * n + j] - x[(n - i - 3) * n + j] * a[(n - 3 - i) * n + j]) / b[(n - 2 - i) * n + j];
}
