// Simulations on grids, and linear algebra, in the shapes of benchmarks.

kernel void heat_3d(global const float *a, global float *b, int n) {
    int k = get_global_id(0), j = get_global_id(1), i = get_global_id(2);
    if (i >= 1 && i < n - 1 && j >= 1 && j < n - 1 && k >= 1 && k < n - 1) {
        int at = (i * n + j) * n + k;
        b[at] = 0.125f * (a[at + n * n] - 2.0f * a[at] + a[at - n * n])
            + 0.125f * (a[at + n] - 2.0f * a[at] + a[at - n])
            + 0.125f * (a[at + 1] - 2.0f * a[at] + a[at - 1]) + a[at];
    }
}

kernel void residual(global const float *a, global const float *b, global float *r, int count) {
    int i = get_global_id(0);
    if (i < count) {
        r[i] = fabs(a[i] - b[i]);
    }
}

kernel void relax_1d(global const float *a, global float *b, int n) {
    int i = get_global_id(0);
    if (i > 0 && i < n - 1) {
        b[i] = 0.33333f * (a[i - 1] + a[i] + a[i + 1]);
    }
}

kernel void relax_2d(global const float *a, global float *b, int n) {
    int j = get_global_id(0), i = get_global_id(1);
    if ((i >= 1) && (i < (n - 1)) && (j >= 1) && (j < (n - 1))) {
        b[i * n + j] = 0.2f * (a[i * n + j] + a[i * n + (j - 1)] + a[i * n + (1 + j)] + a[(1 + i) * n + j] + a[(i - 1) * n + j]);
    }
}

kernel void convolution_3d(global const float *a, global float *b, int ni, int nj, int nk) {
    int k = get_global_id(0), j = get_global_id(1), i = get_global_id(2);
    if (i < ni - 1 && j < nj - 1 && k < nk - 1 && i > 0 && j > 0 && k > 0) {
        b[i * (nk * nj) + j * nk + k] = 2.0f * a[(i - 1) * (nk * nj) + (j - 1) * nk + (k - 1)]
            + 4.0f * a[(i - 1) * (nk * nj) + (j - 1) * nk + (k + 1)] + 5.0f * a[i * (nk * nj) + (j - 1) * nk + k]
            - 8.0f * a[(i + 1) * (nk * nj) + (j + 1) * nk + (k - 1)] + 10.0f * a[i * (nk * nj) + j * nk + k];
    }
}

kernel void mean_of_columns(global float *mean, global const float *data, float count, int m, int n) {
    int j = get_global_id(0);
    if (j < m) {
        mean[j] = 0.0f;
        for (int i = 0; i < n; i++) {
            mean[j] += data[i * m + j];
        }
        mean[j] /= count;
    }
}

kernel void center(global const float *mean, global float *data, int m, int n) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < n && j < m) {
        data[i * m + j] -= mean[j];
    }
}

kernel void deviation_of_columns(
    global const float *mean, global float *stddev, global const float *data, float count, float eps, int m, int n) {
    int j = get_global_id(0);
    if (j < m) {
        stddev[j] = 0.0f;
        for (int i = 0; i < n; i++) {
            stddev[j] += (data[i * m + j] - mean[j]) * (data[i * m + j] - mean[j]);
        }
        stddev[j] /= count;
        stddev[j] = sqrt(stddev[j]);
        if (stddev[j] <= eps) {
            stddev[j] = 1.0f;
        }
    }
}

kernel void standardise(
    global const float *mean, global const float *stddev, global float *data, float root, int m, int n) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < n && j < m) {
        data[i * m + j] -= mean[j];
        data[i * m + j] /= root * stddev[j];
    }
}

kernel void add_outer_products(
    global float *a, global const float *u1, global const float *v1, global const float *u2, global const float *v2,
    int n) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < n && j < n) {
        a[i * n + j] += u1[i] * v1[j] + u2[i] * v2[j];
    }
}

kernel void add_transposed_product(
    global const float *a, global float *x, global const float *y, global const float *z, float beta, int n) {
    int i = get_global_id(0);
    if (i < n) {
        for (int j = 0; j < n; j++) {
            x[i] += beta * a[j * n + i] * y[j];
        }
        x[i] += z[i];
    }
}

kernel void row_products(global const float *a, global const float *x, global float *tmp, int nx, int ny) {
    int i = get_global_id(0);
    if (i < nx) {
        tmp[i] = 0.0f;
        for (int j = 0; j < ny; j++) {
            tmp[i] += a[i * ny + j] * x[j];
        }
    }
}

kernel void product(
    global const float *a, global const float *b, global float *c, int ni, int nj, int nk, float alpha) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < ni && j < nj) {
        float sum = 0.0f;
        for (int k = 0; k < nk; ++k) {
            sum += alpha * a[i * nk + k] * b[k * nj + j];
        }
        c[i * nj + j] = sum;
    }
}

kernel void add_bias_relu(global float *c, global const float *bias, int ni, int nj) {
    int j = get_global_id(0), i = get_global_id(1);
    if (i < ni && j < nj) {
        c[i * nj + j] = fmax(c[i * nj + j] + bias[j], 0.0f);
    }
}

// Cells of a torus that live on or not.
kernel void live(global const uchar *cells, global uchar *next, int w, int h) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= w || y >= h) {
        return;
    }
    int count = 0;
    for (int dy = -1; dy <= 1; dy++) {
        for (int dx = -1; dx <= 1; dx++) {
            if (dx != 0 || dy != 0) {
                count += cells[((y + dy + h) % h) * w + (x + dx + w) % w] & 1;
            }
        }
    }
    next[y * w + x] = count == 3 || (count == 2 && (cells[y * w + x] & 1)) ? 1 : 0;
}

// Waves, with fixed ends.
kernel void wave(
    global const float *last, global const float *now, global float *next, float speed, uint w, uint h) {
    uint x = get_global_id(0), y = get_global_id(1);
    if (x >= w || y >= h)
        return;
    uint i = y * w + x;
    if (x == 0 || y == 0 || x == w - 1 || y == h - 1) {
        next[i] = 0.0f;
    } else {
        float bend = now[i - 1] + now[i + 1] + now[i - w] + now[i + w] - 4.0f * now[i];
        next[i] = 2.0f * now[i] - last[i] + speed * bend;
    }
}

kernel void damp(global float *now, float by, uint count) {
    uint i = get_global_id(0);
    if (i < count) {
        now[i] *= by;
    }
}

kernel void divergence(
    global const float *u, global const float *v, global float *div, int w, int h) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x < w && y < h) {
        int l = max(0, x - 1), r = min(w - 1, x + 1), d = max(0, y - 1), t = min(h - 1, y + 1);
        div[y * w + x] = 0.5f * (u[y * w + r] - u[y * w + l] + v[t * w + x] - v[d * w + x]);
    }
}

kernel void pressure_step(
    global const float *p, global const float *div, global float *next, int w, int h) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x < w && y < h) {
        int l = max(0, x - 1), r = min(w - 1, x + 1), d = max(0, y - 1), t = min(h - 1, y + 1);
        next[y * w + x] = 0.25f * (p[y * w + l] + p[y * w + r] + p[d * w + x] + p[t * w + x] - div[y * w + x]);
    }
}

kernel void subtract_gradient(
    global float *u, global float *v, global const float *p, int w, int h) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x < w && y < h) {
        int l = max(0, x - 1), r = min(w - 1, x + 1), d = max(0, y - 1), t = min(h - 1, y + 1);
        u[y * w + x] -= 0.5f * (p[y * w + r] - p[y * w + l]);
        v[y * w + x] -= 0.5f * (p[t * w + x] - p[d * w + x]);
    }
}

// Densities that move in five directions, a plane for each direction.
kernel void collide(global const float *from, global float *to, float rate, int w, int h) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= w || y >= h) {
        return;
    }
    int n = w * h, i = y * w + x;
    float f0 = from[i], f1 = from[n + i], f2 = from[2 * n + i], f3 = from[3 * n + i], f4 = from[4 * n + i];
    float rho = f0 + f1 + f2 + f3 + f4;
    to[i] = f0 + rate * (0.3333f * rho - f0);
    to[n + i] = f1 + rate * (0.1667f * rho - f1);
    to[2 * n + i] = f2 + rate * (0.1667f * rho - f2);
    to[3 * n + i] = f3 + rate * (0.1667f * rho - f3);
    to[4 * n + i] = f4 + rate * (0.1667f * rho - f4);
}

kernel void stream(global const float *from, global float *to, int w, int h) {
    int x = get_global_id(0), y = get_global_id(1);
    if (x >= w || y >= h) {
        return;
    }
    int n = w * h, i = y * w + x;
    int l = x > 0 ? x - 1 : w - 1, r = x < w - 1 ? x + 1 : 0, d = y > 0 ? y - 1 : h - 1, t = y < h - 1 ? y + 1 : 0;
    to[i] = from[i];
    to[n + i] = from[n + y * w + l];
    to[2 * n + i] = from[2 * n + y * w + r];
    to[3 * n + i] = from[3 * n + d * w + x];
    to[4 * n + i] = from[4 * n + t * w + x];
}

// Cells of a structure, with a ghost cell at either end of each row.
typedef struct {
    float height, speed;
} Water;

kernel void flow(global const Water *from, global Water *to, float rate, int n) {
    int i = get_global_id(0);
    if (i >= n) {
        return;
    }
    int l = i == 0 ? 0 : i - 1, r = i == n - 1 ? n - 1 : i + 1;
    to[i].height = from[i].height - rate * (from[r].speed - from[l].speed);
    to[i].speed = from[i].speed - rate * (from[r].height - from[l].height);
}
