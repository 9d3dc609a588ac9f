#include "vectors.h"
#pragma OPENCL EXTENSION cl_khr_fp64 : enable

PASS_ALL(char)
PASS_ALL(uchar)
PASS_ALL(short)
PASS_ALL(ushort)
PASS_ALL(int)
PASS_ALL(uint)
PASS_ALL(long)
PASS_ALL(ulong)
PASS_ALL(float)
#ifdef WITH_DOUBLE
PASS_ALL(double)
#endif
