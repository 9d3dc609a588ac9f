// Declarations that the parser of kernels has to understand.
typedef struct __attribute__((packed)) {
    uchar kind;
    float weight;
} Pair;

struct Matrix {
    float rows[3][4];
};

typedef float Row[4];
typedef global const uint *Indexes;

// Adds `by` to each number. [Links] and <tags> in comments are no markup.
kernel void type(global int *self, int by) { self[get_global_id(0)] += by; }

kernel __attribute__((reqd_work_group_size(4, 1, 1))) void
build(const global float x[restrict], float global * const restrict range)
{
    range[get_global_id(0)] = 2 * x[get_global_id(0)];
}

void kernel structs(struct Matrix m, Pair p, global Pair *pairs, global Row *rows, Indexes at)
{
    size_t i = get_global_id(0);
    pairs[i].weight = m.rows[0][1] * p.weight;
    pairs[i].kind = p.kind;
    rows[i][1] = at[i];
}

kernel void load_half(global const half *x, global float *y)
{
    y[get_global_id(0)] = vload_half(get_global_id(0), x);
}

kernel void bytes(constant void *from, global void *to)
{
    ((global uchar *)to)[get_global_id(0)] = ((constant uchar *)from)[get_global_id(0)];
}

kernel void histogram(volatile global int *counts, global const uchar *x)
{
    atomic_inc(&counts[x[get_global_id(0)] & 3]);
}

kernel void seventeen(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l, int m,
                      int n, int o, int p, global int *sum)
{
    sum[get_global_id(0)] = a + b + c + d + e + f + g + h + i + j + k + l + m + n + o + p;
}

kernel void picture(read_only image2d_t image, global float *x) { x[0] = 0; }
