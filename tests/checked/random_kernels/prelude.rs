//! Macros of the generated texts: each access and each operation whose result may not be defined.
//!
//! The plain text does them as a programmer would. The reference text has the guards that a checked launch is
//! documented to have, written by hand, and notes in `flag` that a guard was needed.

/// Types and constants of both texts.
const COMMON: &str = "
typedef struct { int a; short b[4]; long c; uchar d; } Pair;
constant int table[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
";

const PLAIN: &str = "
#define FLAG
#define PASS
#define LOAD(S, T, p, n, i) ((p)[i])
#define STORE(S, T, p, n, i, v) (p)[i] = (v)
#define VLOAD(S, T, w, p, n, i) vload##w(i, p)
#define VSTORE(S, T, w, p, n, i, v) vstore##w(v, i, p)
#define MEMBER(S, p, n, i, m) ((p)[i].m)
#define SET_MEMBER(S, p, n, i, m, v) (p)[i].m = (v)
#define ATOMIC(f, p, n, i, v) f(&(p)[i], v)
#define DIV(a, b) ((a) / (b))
#define REM(a, b) ((a) % (b))
#define CLAMP(v, low, high) clamp(v, low, high)
#define COMPONENT(v, w, i) ((v)[i])
";

const REFERENCE: &str = "
#define FLAG , global int *flag
#define PASS , flag
#define NOTE atomic_or(flag, 1)
#define OFFSET(size, i) ((ulong)(long)(i) * (ulong)(size))
#define INSIDE(n, offset, size) ((n) >= (ulong)(size) && (offset) <= (n) - (ulong)(size))
#define AT(S, T, p, offset) ((S T *)((S char *)(p) + (offset)))
#define LOAD(S, T, p, n, i) (INSIDE(n, OFFSET(sizeof(T), i), sizeof(T)) \\
    ? *AT(S const, T, p, OFFSET(sizeof(T), i)) : (NOTE, (T)0))
#define STORE(S, T, p, n, i, v) \\
    if (INSIDE(n, OFFSET(sizeof(T), i), sizeof(T))) *AT(S, T, p, OFFSET(sizeof(T), i)) = (v); else NOTE
#define VLOAD(S, T, w, p, n, i) (INSIDE(n, OFFSET(w * sizeof(T), i), w * sizeof(T)) \\
    ? vload##w(0, AT(S const, T, p, OFFSET(w * sizeof(T), i))) : (NOTE, (T##w)0))
#define VSTORE(S, T, w, p, n, i, v) if (INSIDE(n, OFFSET(w * sizeof(T), i), w * sizeof(T))) \\
    vstore##w(v, 0, AT(S, T, p, OFFSET(w * sizeof(T), i))); else NOTE
#define MEMBER(S, p, n, i, m) (INSIDE(n, OFFSET(sizeof(Pair), i), sizeof(Pair)) \\
    ? AT(S const, Pair, p, OFFSET(sizeof(Pair), i))->m : (NOTE, 0))
#define SET_MEMBER(S, p, n, i, m, v) if (INSIDE(n, OFFSET(sizeof(Pair), i), sizeof(Pair))) \\
    AT(S, Pair, p, OFFSET(sizeof(Pair), i))->m = (v); else NOTE
#define ATOMIC(f, p, n, i, v) \\
    (INSIDE(n, OFFSET(sizeof(int), i), sizeof(int)) ? f(&(p)[i], v) : (NOTE, 0))
#define IS_BAD(a, b) ((b) == 0 || ((a) == INT_MIN && (b) == -1))
#define DIV(a, b) (IS_BAD(a, b) ? (NOTE, 0) : (a) / (IS_BAD(a, b) ? 1 : (b)))
#define REM(a, b) (IS_BAD(a, b) ? (NOTE, 0) : (a) % (IS_BAD(a, b) ? 1 : (b)))
#define CLAMP(v, low, high) ((low) > (high) ? (NOTE, high) : clamp(v, low, high))
#define COMPONENT(v, w, i) ((uint)(i) < w ? (v)[(uint)(i)] : (NOTE, (v)[(uint)(i) % w]))
";

/// Functions that kernels call with their memory. They use the macros.
const HELPERS: &str = "
__attribute__((noinline)) int picked(global const T *p, ulong n, int at, int by FLAG) {
    if (by & 1) return (int)LOAD(global, T, p, n, at);
    return (int)LOAD(global, T, p, n, at - by);
}
int ranged(global const T *p, ulong n, int from, int count, int step FLAG) {
    int sum = 0;
    for (int k = 0; k < (count & 7); k++) {
        sum = (int)((uint)sum + (uint)(int)LOAD(global, T, p, n, (int)((uint)from + (uint)k * (uint)step)));
    }
    return sum;
}
void spread(local int *p, ulong n, uint from, uint step, int value FLAG) {
    for (uint k = from; k < (uint)(n / sizeof(int)); k += step) {
        STORE(local, int, p, n, k, value + (int)k);
    }
}
";

/// Returns what comes before the kernels of a text.
pub(super) fn prelude(is_reference: bool) -> String {
    let macros = if is_reference { REFERENCE } else { PLAIN };
    format!("{COMMON}{macros}")
}

/// Returns the helpers for inputs of a type. Each type has its own.
pub(super) fn helpers(element: &str) -> String {
    let mut text = HELPERS.replace("picked", &format!("picked_{element}"));
    text = text.replace("ranged", &format!("ranged_{element}"));
    text = text.replace("spread", &format!("spread_{element}"));
    text.replace("T *p", &format!("{element} *p")).replace(" T,", &format!(" {element},"))
}
