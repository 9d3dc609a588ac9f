// One step of a small transformer's decoding: from the last token and its position to the next token. `state` has both,
// so that the same launches decode every token.

#define WIDTH 256
#define HEADS 8
#define HEAD (WIDTH / HEADS)
#define CONTEXT 128
#define VOCABULARY 1000

/// Looks up the vector of the last token.
kernel void embed(global const uint *state, global const float *table, global float *x) {
    uint token = min(state[0], VOCABULARY - 1u);
    size_t i = get_global_id(0);
    x[i] = table[token * WIDTH + i];
}

/// Divides a vector by its root mean square, and scales it.
kernel void rms_norm(global const float *x, global const float *scale, global float *normed) {
    float squares = 0;
    for (uint k = 0; k < WIDTH; k++) squares += x[k] * x[k];
    size_t i = get_global_id(0);
    normed[i] = x[i] * rsqrt(squares / WIDTH + 1e-5f) * scale[i];
}

/// Multiplies a matrix by a vector of `columns` elements.
kernel void matvec(global const float *matrix, global const float *x, global float *y, uint columns) {
    size_t row = get_global_id(0);
    float sum = 0;
    for (uint k = 0; k < columns; k++) sum += matrix[row * columns + k] * x[k];
    y[row] = sum;
}

/// Rotates pairs of elements of the query and the key by angles that depend on the position.
kernel void rope(global const uint *state, global float *query, global float *key) {
    size_t pair = get_global_id(0);
    float speed = pow(10000.0f, -2.0f * (pair % (HEAD / 2)) / HEAD);
    float angle = min(state[1], CONTEXT - 1u) * speed;
    float c = cos(angle), s = sin(angle);
    float2 q = (float2)(query[2 * pair], query[2 * pair + 1]);
    query[2 * pair] = q.x * c - q.y * s;
    query[2 * pair + 1] = q.x * s + q.y * c;
    float2 k = (float2)(key[2 * pair], key[2 * pair + 1]);
    key[2 * pair] = k.x * c - k.y * s;
    key[2 * pair + 1] = k.x * s + k.y * c;
}

/// Appends the key and the value to those of earlier positions.
kernel void append(global const uint *state, global const float *key, global const float *value,
                   global float *keys, global float *values) {
    uint position = min(state[1], CONTEXT - 1u);
    size_t i = get_global_id(0);
    keys[position * WIDTH + i] = key[i];
    values[position * WIDTH + i] = value[i];
}

/// Compares the query with the keys of all positions so far, in each head.
kernel void scores(global const uint *state, global const float *query, global const float *keys,
                   global float *scores) {
    uint head = get_global_id(0) / CONTEXT, at = get_global_id(0) % CONTEXT;
    float sum = 0;
    for (uint k = 0; k < HEAD; k++) sum += query[head * HEAD + k] * keys[at * WIDTH + head * HEAD + k];
    scores[head * CONTEXT + at] = at <= state[1] ? sum * rsqrt((float)HEAD) : -1e30f;
}

/// Turns the scores of each head into weights with the sum one.
kernel void softmax(global float *scores) {
    uint head = get_global_id(0);
    float most = -1e30f, sum = 0;
    for (uint at = 0; at < CONTEXT; at++) most = max(most, scores[head * CONTEXT + at]);
    for (uint at = 0; at < CONTEXT; at++) sum += exp(scores[head * CONTEXT + at] - most);
    for (uint at = 0; at < CONTEXT; at++)
        scores[head * CONTEXT + at] = exp(scores[head * CONTEXT + at] - most) / sum;
}

/// Adds up the values of all positions by their weights.
kernel void attend(global const float *weights, global const float *values, global float *y) {
    uint i = get_global_id(0), head = i / HEAD;
    float sum = 0;
    for (uint at = 0; at < CONTEXT; at++) sum += weights[head * CONTEXT + at] * values[at * WIDTH + i];
    y[i] = sum;
}

/// Adds the result of a block to its input.
kernel void add(global const float *y, global float *x) {
    size_t i = get_global_id(0);
    x[i] += y[i];
}

/// Gates a hidden vector: `up * gate / (1 + exp(-gate))`.
kernel void silu(global const float *gate, global float *up) {
    size_t i = get_global_id(0);
    up[i] *= gate[i] / (1 + exp(-gate[i]));
}

/// Takes the most likely token as the next one, and advances the position.
kernel void choose(global const float *logits, global uint *state, global uint *tokens) {
    uint best = 0;
    for (uint token = 1; token < VOCABULARY; token++)
        if (logits[token] > logits[best]) best = token;
    uint position = min(state[1], CONTEXT - 1u);
    tokens[position] = best;
    state[0] = best;
    state[1] = position + 1;
}
