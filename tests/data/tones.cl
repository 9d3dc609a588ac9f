// Ten functions and a kernel. `tone_9` calls `tone_3` and `tone_5`, which call nothing.
#define NOT_INLINED __attribute__((noinline))

NOT_INLINED float tone_0(float x) { return x; }
NOT_INLINED float tone_1(float x) { return x + 1.0f; }
NOT_INLINED float tone_2(float x) { return x + 2.0f; }
NOT_INLINED float tone_3(float x) { return x + 3.0f; }
NOT_INLINED float tone_4(float x) { return x + 4.0f; }
NOT_INLINED float tone_5(float x) { return x + 5.0f; }
NOT_INLINED float tone_6(float x) { return x + 6.0f; }
NOT_INLINED float tone_7(float x) { return x + 7.0f; }
NOT_INLINED float tone_8(float x) { return x + 8.0f; }
NOT_INLINED float tone_9(float x) { return tone_3(x) + tone_5(x); }

kernel void tones(global float *x) { x[get_global_id(0)] = tone_9(x[get_global_id(0)]); }
