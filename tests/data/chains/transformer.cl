// Kernels of transformers, with the shapes of those that run language models on OpenCL: pointers moved by
// bytes, strides as 64-bit arguments, a row for each work-group, and four elements for each work-item.

#pragma OPENCL EXTENSION cl_khr_fp16 : enable

kernel void scale4(global float4 *src0, ulong offset0, global float4 *dst, ulong offsetd, float scale) {
    src0 = (global float4 *)((global char *)src0 + offset0);
    dst = (global float4 *)((global char *)dst + offsetd);
    dst[get_global_id(0)] = src0[get_global_id(0)] * scale;
}

kernel void silu4(global float4 *src0, ulong offset0, global float4 *dst, ulong offsetd) {
    src0 = (global float4 *)((global char *)src0 + offset0);
    dst = (global float4 *)((global char *)dst + offsetd);
    float4 x = src0[get_global_id(0)];
    dst[get_global_id(0)] = x / (1.0f + exp(-x));
}

kernel void silu(global float *src0, ulong offset0, global float *dst, ulong offsetd) {
    src0 = (global float *)((global char *)src0 + offset0);
    dst = (global float *)((global char *)dst + offsetd);
    float x = src0[get_global_id(0)];
    dst[get_global_id(0)] = x / (1.0f + exp(-x));
}

kernel void gelu(global float *src0, ulong offset0, global float *dst, ulong offsetd) {
    src0 = (global float *)((global char *)src0 + offset0);
    dst = (global float *)((global char *)dst + offsetd);
    float x = src0[get_global_id(0)];
    dst[get_global_id(0)] = 0.5f * x * (1.0f + tanh(0.79788456f * x * (1.0f + 0.044715f * x * x)));
}

kernel void gelu4(global float4 *src0, ulong offset0, global float4 *dst, ulong offsetd) {
    src0 = (global float4 *)((global char *)src0 + offset0);
    dst = (global float4 *)((global char *)dst + offsetd);
    float4 x = src0[get_global_id(0)];
    dst[get_global_id(0)] = 0.5f * x * (1.0f + tanh(0.79788456f * x * (1.0f + 0.044715f * x * x)));
}

kernel void gelu_quick(global float *src0, ulong offset0, global float *dst, ulong offsetd) {
    src0 = (global float *)((global char *)src0 + offset0);
    dst = (global float *)((global char *)dst + offsetd);
    float x = src0[get_global_id(0)];
    dst[get_global_id(0)] = x * (1.0f / (1.0f + exp(-1.702f * x)));
}

kernel void relu(global const float *src0, global float *dst, int n) {
    int i = get_global_id(0);
    if (i >= n) {
        return;
    }
    dst[i] = fmax(0.0f, src0[i]);
}

kernel void sigmoid(global const float *src0, global float *dst, int n) {
    int i = get_global_id(0);
    if (i >= n) {
        return;
    }
    dst[i] = 1.0f / (1.0f + exp(-src0[i]));
}

kernel void tanh_flat(global const float *src0, global float *dst, uint n) {
    uint i = get_global_id(0);
    if (i < n) {
        dst[i] = tanh(src0[i]);
    }
}

kernel void clamp_flat(global const float *src0, global float *dst, float least, float most) {
    dst[get_global_id(0)] = clamp(src0[get_global_id(0)], least, most);
}

kernel void sub_flat(global const float *src0, global const float *src1, global float *dst) {
    size_t i = get_global_id(0);
    dst[i] = src0[i] - src1[i];
}

kernel void mul_flat(global const float *src0, global const float *src1, global float *dst) {
    size_t i = get_global_id(0);
    dst[i] = src0[i] * src1[i];
}

kernel void div_flat(global const float *src0, global float *dst, float by) {
    size_t i = get_global_id(0);
    dst[i] = src0[i] / by;
}

// Adds a row to each row of a matrix.
kernel void add_row4(
    global float4 *src0, ulong offset0, global float4 *src1, ulong offset1, global float4 *dst, ulong offsetd, int ne) {
    src0 = (global float4 *)((global char *)src0 + offset0);
    src1 = (global float4 *)((global char *)src1 + offset1);
    dst = (global float4 *)((global char *)dst + offsetd);
    uint gid = get_global_id(0);
    uint idx1 = gid - (gid / ne) * ne;
    dst[gid] = src0[gid] + src1[idx1];
}

kernel void mul_row4(
    global float4 *src0, ulong offset0, global float4 *src1, ulong offset1, global float4 *dst, ulong offsetd, int ne) {
    src0 = (global float4 *)((global char *)src0 + offset0);
    src1 = (global float4 *)((global char *)src1 + offset1);
    dst = (global float4 *)((global char *)dst + offsetd);
    uint gid = get_global_id(0);
    uint idx1 = gid - (gid / ne) * ne;
    dst[gid] = src0[gid] * src1[idx1];
}

// The two kernels of tensors with up to four dimensions, a work-group for each row. The second tensor is
// repeated.
kernel void add(
    global char *src0, ulong offset0, global char *src1, ulong offset1, global char *dst, ulong offsetd,
    ulong nb00, ulong nb01, ulong nb02, ulong nb03, int ne10, int ne11, int ne12, int ne13,
    ulong nb10, ulong nb11, ulong nb12, ulong nb13, int ne0, ulong nb0, ulong nb1, ulong nb2, ulong nb3) {
    src0 = src0 + offset0;
    src1 = src1 + offset1;
    dst = dst + offsetd;
    int i03 = get_group_id(2);
    int i02 = get_group_id(1);
    int i01 = get_group_id(0);
    int i13 = i03 % ne13;
    int i12 = i02 % ne12;
    int i11 = i01 % ne11;
    global char *src0_ptr = src0 + i03 * nb03 + i02 * nb02 + i01 * nb01;
    global char *src1_ptr = src1 + i13 * nb13 + i12 * nb12 + i11 * nb11;
    global char *dst_ptr = dst + i03 * nb3 + i02 * nb2 + i01 * nb1;
    for (int i0 = get_local_id(0); i0 < ne0; i0 += get_local_size(0)) {
        const int i10 = i0 % ne10;
        *((global float *)(dst_ptr + i0 * nb0)) =
            *((global float *)(src0_ptr + i0 * nb00)) + *((global float *)(src1_ptr + i10 * nb10));
    }
}

kernel void mul(
    global char *src0, ulong offset0, global char *src1, ulong offset1, global char *dst, ulong offsetd,
    ulong nb00, ulong nb01, ulong nb02, ulong nb03, int ne10, int ne11, int ne12, int ne13,
    ulong nb10, ulong nb11, ulong nb12, ulong nb13, int ne0, ulong nb0, ulong nb1, ulong nb2, ulong nb3) {
    src0 = src0 + offset0;
    src1 = src1 + offset1;
    dst = dst + offsetd;
    int i03 = get_group_id(2);
    int i02 = get_group_id(1);
    int i01 = get_group_id(0);
    int i13 = i03 % ne13;
    int i12 = i02 % ne12;
    int i11 = i01 % ne11;
    global char *src0_ptr = src0 + i03 * nb03 + i02 * nb02 + i01 * nb01;
    global char *src1_ptr = src1 + i13 * nb13 + i12 * nb12 + i11 * nb11;
    global char *dst_ptr = dst + i03 * nb3 + i02 * nb2 + i01 * nb1;
    for (int i0 = get_local_id(0); i0 < ne0; i0 += get_local_size(0)) {
        const int i10 = i0 % ne10;
        *((global float *)(dst_ptr + i0 * nb0)) =
            *((global float *)(src0_ptr + i0 * nb00)) * *((global float *)(src1_ptr + i10 * nb10));
    }
}

// Divides each row by the root of its mean square.
kernel void rms_norm(
    global void *src0, ulong offset0, global float *dst, ulong offsetd, int ne00, int ne01, int ne02, int ne03,
    ulong nb01, ulong nb02, ulong nb03, float eps, local float *sum) {
    src0 = (global void *)((global char *)src0 + offset0);
    dst = (global float *)((global char *)dst + offsetd);
    int i03 = get_group_id(2);
    int i02 = get_group_id(1);
    int i01 = get_group_id(0);
    global float4 *x = (global float4 *)((global char *)src0 + i03 * nb03 + i02 * nb02 + i01 * nb01);
    float4 sumf = 0.0f;
    for (int i00 = get_local_id(0); i00 < ne00 / 4; i00 += get_local_size(0)) {
        sumf += x[i00] * x[i00];
    }
    sum[get_local_id(0)] = sumf.s0 + sumf.s1 + sumf.s2 + sumf.s3;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = get_local_size(0) / 2; i > 0; i /= 2) {
        if (get_local_id(0) < i) {
            sum[get_local_id(0)] += sum[get_local_id(0) + i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float scale = 1.0f / sqrt(sum[0] / ne00 + eps);
    global float4 *y = (global float4 *)(dst + i03 * ne02 * ne01 * ne00 + i02 * ne01 * ne00 + i01 * ne00);
    for (int i00 = get_local_id(0); i00 < ne00 / 4; i00 += get_local_size(0)) {
        y[i00] = x[i00] * scale;
    }
}

// Subtracts each row's mean and divides by its deviation.
kernel void norm(
    global void *src0, ulong offset0, global void *dst, ulong offsetd, int ne00, int ne01, int ne02, int ne03,
    ulong nb01, ulong nb02, ulong nb03, float eps, local float *sum) {
    src0 = (global void *)((global char *)src0 + offset0);
    dst = (global void *)((global char *)dst + offsetd);
    int i03 = get_group_id(2);
    int i02 = get_group_id(1);
    int i01 = get_group_id(0);
    global float *x = (global float *)((global char *)src0 + i03 * nb03 + i02 * nb02 + i01 * nb01);
    sum[get_local_id(0)] = 0.0f;
    for (int i00 = get_local_id(0); i00 < ne00; i00 += get_local_size(0)) {
        sum[get_local_id(0)] += x[i00];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = get_local_size(0) / 2; i > 0; i /= 2) {
        if (get_local_id(0) < i) {
            sum[get_local_id(0)] += sum[get_local_id(0) + i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    float mean = sum[0] / ne00;
    barrier(CLK_LOCAL_MEM_FENCE);
    global float *y = (global float *)dst + i03 * ne02 * ne01 * ne00 + i02 * ne01 * ne00 + i01 * ne00;
    sum[get_local_id(0)] = 0.0f;
    for (int i00 = get_local_id(0); i00 < ne00; i00 += get_local_size(0)) {
        y[i00] = x[i00] - mean;
        sum[get_local_id(0)] += y[i00] * y[i00];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = get_local_size(0) / 2; i > 0; i /= 2) {
        if (get_local_id(0) < i) {
            sum[get_local_id(0)] += sum[get_local_id(0) + i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    float scale = 1.0f / sqrt(sum[0] / ne00 + eps);
    for (int i00 = get_local_id(0); i00 < ne00; i00 += get_local_size(0)) {
        y[i00] = y[i00] * scale;
    }
}

// Turns each row into probabilities, after a scale and an optional mask. A mask that is the same pointer as
// the source means that there is none.
kernel void soft_max(
    global float *src0, ulong offset0, global float *src1, ulong offset1, global float *dst, ulong offsetd,
    int ne00, int ne01, int ne02, float scale, local float *buf) {
    src0 = (global float *)((global char *)src0 + offset0);
    src1 = (global float *)((global char *)src1 + offset1);
    dst = (global float *)((global char *)dst + offsetd);
    int i03 = get_group_id(2);
    int i02 = get_group_id(1);
    int i01 = get_group_id(0);
    global float *psrc0 = src0 + i03 * ne02 * ne01 * ne00 + i02 * ne01 * ne00 + i01 * ne00;
    global float *pmask = src1 != src0 ? src1 + i01 * ne00 : 0;
    global float *pdst = dst + i03 * ne02 * ne01 * ne00 + i02 * ne01 * ne00 + i01 * ne00;
    float most = -INFINITY;
    for (int i00 = get_local_id(0); i00 < ne00; i00 += get_local_size(0)) {
        most = fmax(most, psrc0[i00] * scale + (pmask ? pmask[i00] : 0.0f));
    }
    buf[get_local_id(0)] = most;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = get_local_size(0) / 2; i > 0; i /= 2) {
        if (get_local_id(0) < i) {
            buf[get_local_id(0)] = fmax(buf[get_local_id(0)], buf[get_local_id(0) + i]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    most = buf[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    float own = 0.0f;
    for (int i00 = get_local_id(0); i00 < ne00; i00 += get_local_size(0)) {
        const float part = exp(psrc0[i00] * scale + (pmask ? pmask[i00] : 0.0f) - most);
        own += part;
        pdst[i00] = part;
    }
    buf[get_local_id(0)] = own;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = get_local_size(0) / 2; i > 0; i /= 2) {
        if (get_local_id(0) < i) {
            buf[get_local_id(0)] += buf[get_local_id(0) + i];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float sum = buf[0];
    for (int i00 = get_local_id(0); i00 < ne00; i00 += get_local_size(0)) {
        pdst[i00] /= sum;
    }
}

// Hides what follows the current position, an element for each work-item.
kernel void diag_mask_inf(
    global float *src0, ulong offset0, global float *dst, ulong offsetd, int ne00, int ne01, int n_past) {
    src0 = (global float *)((global char *)src0 + offset0);
    dst = (global float *)((global char *)dst + offsetd);
    int i02 = get_global_id(2);
    int i01 = get_global_id(1);
    int i00 = get_global_id(0);
    if (i00 > n_past + i01) {
        dst[i02 * ne01 * ne00 + i01 * ne00 + i00] = -INFINITY;
    } else {
        dst[i02 * ne01 * ne00 + i01 * ne00 + i00] = src0[i02 * ne01 * ne00 + i01 * ne00 + i00];
    }
}

// Rotates pairs of elements by angles that grow with the position of their row.
kernel void rope_neox(
    global char *src0, ulong offset0, global int *pos, global float *factors, global float *dst, ulong offsetd,
    int ne0, ulong nb00, ulong nb01, ulong nb02, ulong nb0, ulong nb1, ulong nb2, int n_dims, float theta_scale) {
    src0 = src0 + offset0;
    dst = (global float *)((global char *)dst + offsetd);
    int i2 = get_group_id(1);
    int i1 = get_group_id(0);
    float theta_base = (float)pos[i2];
    for (int i0 = 2 * get_local_id(0); i0 < ne0; i0 += 2 * get_local_size(0)) {
        if (i0 < n_dims) {
            int ic = i0 / 2;
            const float theta = theta_base * pow(theta_scale, (float)ic) / factors[ic];
            const float c = cos(theta), s = sin(theta);
            global float *src =
                (global float *)(src0 + i2 * nb02 + i1 * nb01 + ic * nb00);
            global float *dst_data =
                (global float *)((global char *)dst + i2 * nb2 + i1 * nb1 + ic * nb0);
            const float x0 = src[0];
            const float x1 = src[n_dims / 2];
            dst_data[0] = x0 * c - x1 * s;
            dst_data[n_dims / 2] = x0 * s + x1 * c;
        } else {
            global float *src = (global float *)(src0 + i2 * nb02 + i1 * nb01 + i0 * nb00);
            global float *dst_data = (global float *)((global char *)dst + i2 * nb2 + i1 * nb1 + i0 * nb0);
            dst_data[0] = src[0];
            dst_data[1] = src[1];
        }
    }
}

// Copies rows to another layout, as halves.
kernel void cpy_f32_f16(
    global float *src0, ulong offset0, global half *dst, ulong offsetd, int ne00, int ne01, int ne02, int ne03,
    ulong nb00, ulong nb01, ulong nb02, ulong nb03, int ne0, int ne1, int ne2,
    ulong nb0, ulong nb1, ulong nb2, ulong nb3) {
    src0 = (global float *)((global char *)src0 + offset0);
    dst = (global half *)((global char *)dst + offsetd);
    int i03 = get_group_id(2);
    int i02 = get_group_id(1);
    int i01 = get_group_id(0);
    int n = i03 * ne02 * ne01 * ne00 + i02 * ne01 * ne00 + i01 * ne00;
    int i3 = n / (ne2 * ne1 * ne0);
    int i2 = (n - i3 * ne2 * ne1 * ne0) / (ne1 * ne0);
    int i1 = (n - i3 * ne2 * ne1 * ne0 - i2 * ne1 * ne0) / ne0;
    int i0 = (n - i3 * ne2 * ne1 * ne0 - i2 * ne1 * ne0 - i1 * ne0);
    global half *dst_data = (global half *)((global char *)dst + i3 * nb3 + i2 * nb2 + i1 * nb1 + i0 * nb0);
    for (int i00 = get_local_id(0); i00 < ne00; i00 += get_local_size(0)) {
        global const float *src =
            (global float *)((global char *)src0 + i03 * nb03 + i02 * nb02 + i01 * nb01 + i00 * nb00);
        vstore_half(src[0], i00, dst_data);
    }
}

kernel void cpy_f32_f16_flat(global const float *src0, global half *dst) {
    vstore_half(src0[get_global_id(0)], get_global_id(0), dst);
}

// Repeats a row.
kernel void repeat(
    global const float *src0, global float *dst, int ne00, int ne0, ulong nb01, ulong nb1) {
    int row = get_group_id(0);
    global const float *from = src0;
    global float *to = (global float *)((global char *)dst + row * nb1);
    for (int i = get_local_id(0); i < ne0; i += get_local_size(0)) {
        to[i] = from[i % ne00];
    }
}
