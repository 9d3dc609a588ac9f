//! Random kernels in OpenCL C: typical kernels for fusion, and kernels that must not be fused.
//!
//! The result of each kernel is the same in every run: no two work-items write the same byte, integers wrap,
//! floats stay finite, and no work-item reads a value that another one writes. The contents of a buffer may be
//! read as any type.

use fastrand::Rng;

/// Size of local memory in elements, and of the work-group of kernels that need one.
pub(crate) const GROUP: usize = 16;

/// A kernel of a module.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) kind: Kind,
    /// Maximum number of dimensions for which the kernel is correct.
    pub(crate) dimensions: usize,
    pub(crate) element: Type,
    /// Distance from the bytes of one work-item to those of the next, by which kernels are matched.
    pub(crate) step: usize,
}

/// Access of a kernel to elements of other work-items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Each work-item accesses only its own elements. A kernel that writes all of them is `Certain`.
    Own,
    Certain,
    /// Work-items access elements of their work-group.
    Group,
    /// Work-items read elements of others.
    Cross,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parameter {
    Input,
    Output,
    /// A buffer that is read and written.
    Both,
    /// Positions to read from: any numbers.
    Index,
    /// The number of work-items.
    Items,
    /// The global size in the first dimension.
    Width,
    /// Any small number.
    Number,
    Factor,
    /// Local memory of this number of bytes.
    Local(usize),
}

/// Type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Type {
    pub(crate) name: &'static str,
    /// Unsigned type in which integers are calculated.
    unsigned: &'static str,
    pub(crate) size: usize,
}

const fn element(name: &'static str, unsigned: &'static str, size: usize) -> Type {
    Type { name, unsigned, size }
}

pub(crate) const TYPES: [Type; 10] = [
    element("char", "uchar", 1),
    element("uchar", "uchar", 1),
    element("short", "ushort", 2),
    element("ushort", "ushort", 2),
    element("int", "uint", 4),
    element("uint", "uint", 4),
    element("long", "ulong", 8),
    element("ulong", "ulong", 8),
    element("float", "float", 4),
    element("double", "double", 8),
];

impl Type {
    fn is_float(self) -> bool {
        self.name == self.unsigned && !self.name.starts_with('u')
    }

    /// Returns an expression that reads a place, as a number that is safe to calculate with.
    fn read(self, place: &str) -> String {
        if self.is_float() { format!("clean_{}({place})", self.name) } else { place.to_owned() }
    }
}

/// Beginning of all modules.
pub(crate) const PRELUDE: &str = "
static float clean_float(float x) { float a = fabs(x); return a < 1e6f && a > 1e-6f ? x : 0.5f; }
static double clean_double(double x) { double a = fabs(x); return a < 1e6 && a > 1e-6 ? x : 0.5; }
";

/// Returns a random expression of a type over the given variables.
fn expression(random: &mut Rng, ty: Type, values: &[&str], depth: usize) -> String {
    let unsigned = ty.unsigned;
    if depth == 0 || random.u8(..) < 30 {
        return match random.u8(0..4) {
            0 if ty.is_float() => format!("({unsigned}){}.{}", random.u8(0..4), random.u8(1..9)),
            0 => format!("({unsigned}){}", random.u8(..)),
            _ => format!("({unsigned}){}", values[random.usize(..values.len())]),
        };
    }
    let a = expression(random, ty, values, depth - 1);
    let b = expression(random, ty, values, depth - 1);
    if ty.is_float() {
        // Functions for which compilers may know more about the operands than the device.
        let known = ["sin", "cos", "rsqrt", "exp2", "native_recip", "native_sin", "half_cos"];
        let known = &known[..if ty.size == 4 { 7 } else { 4 }];
        return match random.u8(0..8) {
            0 | 1 => format!("({a} + {b})"),
            2 => format!("({a} - {b})"),
            3 => format!("({a} * ({unsigned})0.7{})", random.u8(1..9)),
            4 => format!("fabs({a})"),
            5 => format!(
                "{}(fmin(fabs({a}), ({unsigned})9) + 1)",
                known[random.usize(..known.len())]
            ),
            _ => format!("({a} > {b} ? {a} : {b} * ({unsigned})0.3)"),
        };
    }
    let wide = if ty.size < 4 { "uint" } else { unsigned };
    match random.u8(0..12) {
        0 | 1 => format!("({unsigned})({a} + {b})"),
        2 => format!("({unsigned})({a} - {b})"),
        3 => format!("({unsigned})(({wide}){a} * ({wide}){b})"),
        4 => format!("({unsigned})({a} ^ {b})"),
        5 => format!("({unsigned})({a} & {b})"),
        6 => format!("({unsigned})({a} >> {})", random.u8(1..7)),
        7 => format!("({unsigned})({a} << {})", random.u8(1..7)),
        // Intel's CPU runtime (2026.22) computes a wrong `min(x, ~x)` for some nd-ranges.
        8 if !a.contains('~') && !b.contains('~') => format!("min({a}, {b})"),
        9 => format!("rotate({a}, ({unsigned}){})", random.u8(1..7)),
        10 => format!("({unsigned})({a} > {b} ? {a} : {b} + 1)"),
        _ => format!("({unsigned})~{a}"),
    }
}

struct Writer<'a> {
    random: &'a mut Rng,
    name: String,
    ty: Type,
    /// Functions and types before the kernel.
    before: String,
    arguments: Vec<String>,
    parameters: Vec<Parameter>,
    dimensions: usize,
    step: usize,
}

impl Writer<'_> {
    fn buffer(&mut self, parameter: Parameter, ty: &str, name: &str) {
        let is_const = matches!(parameter, Parameter::Input | Parameter::Index);
        let qualifier = if is_const { "const " } else { "" };
        self.arguments.push(format!("global {qualifier}{ty} *{name}"));
        self.parameters.push(parameter);
    }

    fn scalar(&mut self, parameter: Parameter, ty: &str, name: &str) {
        self.arguments.push(format!("{ty} {name}"));
        self.parameters.push(parameter);
    }

    /// Declares `s`, a scalar to calculate with.
    fn number(&mut self) {
        let (parameter, ty) = match self.ty.is_float() {
            true => (Parameter::Factor, "float"),
            false => (Parameter::Number, "uint"),
        };
        self.scalar(parameter, ty, "s");
    }

    /// Declares `i`, the index of the work-item.
    fn index(&mut self) -> String {
        let ty = ["size_t", "int", "uint", "ulong", "long"][self.random.usize(..5)];
        match self.random.u8(0..10) {
            0..=4 => {
                self.dimensions = 1;
                format!("    {ty} i = get_global_id(0);\n")
            }
            5 => {
                self.dimensions = 2;
                format!("    {ty} i = get_global_id(1) * get_global_size(0) + get_global_id(0);\n")
            }
            6 | 7 => {
                self.dimensions = 2;
                self.scalar(Parameter::Width, "uint", "width");
                format!(
                    "    {ty} x = get_global_id(0), y = get_global_id(1);\n    {ty} i = y * width + x;\n"
                )
            }
            8 => {
                self.dimensions = 3;
                format!(
                    "    {ty} i = (get_global_id(2) * get_global_size(1) + get_global_id(1)) * \
                     get_global_size(0) + get_global_id(0);\n"
                )
            }
            _ => {
                self.dimensions = 2;
                let name = format!("{}_place", self.name);
                self.before += &format!(
                    "__attribute__((noinline)) size_t {name}(void) {{ return get_global_id(1) * \
                     get_global_size(0) + get_global_id(0); }}\n"
                );
                format!("    {ty} i = {name}();\n")
            }
        }
    }

    /// Returns a random expression of the given values.
    fn value(&mut self, values: &[&str]) -> String {
        let depth = self.random.usize(1..4);
        expression(self.random, self.ty, values, depth)
    }

    /// Returns an expression that no optimisation makes independent of the value.
    fn plain(&self, name: &str) -> String {
        let Type { unsigned, .. } = self.ty;
        format!("({unsigned})({unsigned}){name} + ({unsigned})1")
    }

    /// Returns an expression that adds to a vector, and wraps.
    fn shifted(&self, vector: &str, count: usize) -> String {
        let Type { name, unsigned, .. } = self.ty;
        if self.ty.is_float() {
            return format!("({vector} + ({name})0.5)");
        }
        format!("as_{name}{count}(as_{unsigned}{count}({vector}) + ({unsigned})3)")
    }

    fn finish(self, kind: Kind, body: &str) -> Kernel {
        let text = format!(
            "{}kernel void {}({}) {{\n{body}}}\n",
            self.before,
            self.name,
            self.arguments.join(", ")
        );
        Kernel {
            name: self.name,
            text,
            parameters: self.parameters,
            kind,
            dimensions: self.dimensions,
            element: self.ty,
            step: self.step,
        }
    }
}

/// Creates a kernel with elements of a type. `form` is below [`FORMS`], or is [`PLAIN`].
pub(crate) fn kernel(random: &mut Rng, name: String, ty: Type, form: usize) -> Kernel {
    use Parameter::{Both, Index, Input, Items, Local, Output};
    let mut w = Writer {
        random,
        name,
        ty,
        before: String::new(),
        arguments: Vec::new(),
        parameters: Vec::new(),
        dimensions: 1,
        step: ty.size,
    };
    let (t, a) = (ty.name, ty.read("src[i]"));
    let read = |place: &str| ty.read(place);
    match form {
        // Maps elements one to one, from one or two inputs, with or without a scalar.
        0..=3 | PLAIN => {
            w.buffer(Input, t, "src");
            let mut values = vec!["a"];
            let mut first = format!("    {t} a = {a};\n");
            if form == 2 || form == 3 {
                w.buffer(Input, t, "other");
                first += &format!("    {t} b = {};\n", read("other[i]"));
                values.push("b");
            }
            w.buffer(Output, t, "dst");
            if form % 2 == 1 {
                w.number();
                values.push("s");
            }
            let index = w.index();
            let value = if form == PLAIN { w.plain("a") } else { w.value(&values) };
            w.finish(Kind::Certain, &format!("{index}{first}    dst[i] = {value};\n"))
        }
        4 => {
            w.buffer(Both, t, "own");
            let index = w.index();
            let value = w.value(&["a"]);
            w.finish(
                Kind::Own,
                &format!("{index}    {t} a = {};\n    own[i] = {value};\n", read("own[i]")),
            )
        }
        // Several elements for each work-item.
        5 | 6 => {
            let most = (32 / ty.size).min(4);
            let stride = w.random.usize(2..=most);
            w.step = stride * ty.size;
            w.buffer(Input, t, "src");
            w.buffer(Output, t, "dst");
            let index = w.index();
            let value = w.value(&["a", "k"]);
            let unroll = ["", "#pragma unroll\n", "#pragma nounroll\n"][w.random.usize(..3)];
            let place = format!("{stride} * i + k");
            let a = read(&format!("src[{place}]"));
            w.finish(
                Kind::Own,
                &format!(
                    "{index}{unroll}    for (int k = 0; k < {stride}; k++) {{\n        {t} a = {a};\n        \
                     dst[{place}] = {value};\n    }}\n"
                ),
            )
        }
        7 | 8 => {
            let count = [2, 3, 4, 4][w.random.usize(..4)];
            w.step = count * ty.size;
            w.buffer(Input, t, "src");
            w.buffer(Output, t, "dst");
            let index = w.index();
            let swizzle =
                [["yx", "xy"], ["zxy", "yzx"], ["wzyx", "yxwz"]][count - 2][w.random.usize(..2)];
            let turned = w.shifted(&format!("vload{count}(i, src).{swizzle}"), count);
            w.finish(Kind::Own, &format!("{index}    vstore{count}({turned}, i, dst);\n"))
        }
        9 => {
            // The space after three components belongs to no work-item, so only 2 and 4 are used.
            let count = [2, 4][w.random.usize(..2)];
            w.step = count * ty.size;
            w.buffer(Input, &format!("{t}{count}"), "src");
            w.buffer(Output, &format!("{t}{count}"), "dst");
            let index = w.index();
            let swizzle = ["yx", "", "wzyx"][count - 2];
            let turned = w.shifted(&format!("src[i].{swizzle}"), count);
            w.finish(Kind::Own, &format!("{index}    dst[i] = {turned};\n"))
        }
        10 => {
            w.step = 3 * ty.size;
            let pair = format!("{}_pair", w.name);
            w.before = format!("typedef struct {{ {t} a; uchar tag; {t} b; }} {pair};\n");
            w.buffer(Input, &pair, "src");
            w.buffer(Output, &pair, "dst");
            let index = w.index();
            let (a, b) = (read("src[i].b"), read("src[i].a"));
            let value = w.value(&["a", "b"]);
            w.finish(
                Kind::Own,
                &format!(
                    "{index}    {t} a = {a}, b = {b};\n    dst[i].a = {value};\n    dst[i].b = a;\n    \
                     dst[i].tag = src[i].tag + 1;\n"
                ),
            )
        }
        11 | 12 => {
            w.buffer(Input, t, "src");
            w.buffer(Output, t, "dst");
            w.scalar(Items, "uint", "n");
            let index = w.index();
            let value = w.value(&["a", "n"]);
            let body = format!("    {t} a = {a};\n    dst[i] = {value};\n");
            let body = if form == 11 {
                format!("{index}    if (i >= n) return;\n{body}")
            } else {
                format!("{index}    if (i < n) {{\n{body}    }}\n")
            };
            w.finish(Kind::Own, &body)
        }
        13 => {
            w.buffer(Input, t, "src");
            w.buffer(Output, t, "dst");
            let index = w.index();
            let (yes, no) = (w.value(&["a"]), w.value(&["a"]));
            let rest = ["", &format!(" else {{ dst[i] = {no}; }}")][w.random.usize(..2)].to_owned();
            w.finish(
                Kind::Own,
                &format!("{index}    {t} a = {a};\n    if (a > 5) {{ dst[i] = {yes}; }}{rest}\n"),
            )
        }
        14 => {
            // Pointers are passed through a chain of functions.
            let inline = ["static", "__attribute__((noinline))"][w.random.usize(..2)];
            let name = w.name.clone();
            let (value, got) = (w.value(&["a"]), read("p[i]"));
            w.before = format!(
                "{inline} {t} {name}_get(global const {t} *p, size_t i) {{ return {got}; }}\n\
                 {inline} void {name}_put(global {t} *p, size_t i, {t} a) {{ p[i] = {value}; }}\n"
            );
            w.buffer(Input, t, "src");
            w.buffer(Output, t, "dst");
            let index = w.index();
            w.finish(Kind::Own, &format!("{index}    {name}_put(dst, i, {name}_get(src, i));\n"))
        }
        15 => {
            // Input of another type, mostly of the same size.
            let same: Vec<_> = TYPES.iter().filter(|from| from.size == ty.size).collect();
            let any = TYPES[w.random.usize(..TYPES.len())];
            let from =
                if w.random.u8(..) < 200 { *same[w.random.usize(..same.len())] } else { any };
            w.buffer(Input, from.name, "src");
            w.buffer(Output, t, "dst");
            let index = w.index();
            let a = match (from.name, ty.is_float()) {
                (_, true) => format!("({t})({})", from.read("src[i]")),
                ("float", _) => "as_uint(src[i])".to_owned(),
                ("double", _) => "as_ulong(src[i])".to_owned(),
                _ => "src[i]".to_owned(),
            };
            let value = w.value(&["a"]);
            w.finish(Kind::Own, &format!("{index}    {t} a = {a};\n    dst[i] = {value};\n"))
        }
        16 => {
            // Ids and sizes that a work-item can query.
            w.buffer(Input, t, "src");
            w.buffer(Output, t, "dst");
            let index = w.index();
            let value = w.value(&["a", "p"]);
            let place = [
                "get_global_id(0) + 3 * get_global_id(1)",
                "get_global_size(0) * 5 + get_global_size(1)",
                "get_work_dim() + get_global_id(0)",
                "get_global_offset(0) + get_global_size(2) * 7",
                "get_global_id(get_work_dim() - 1) + get_global_size(get_work_dim() - 1)",
            ][w.random.usize(..5)];
            w.finish(
                Kind::Certain,
                &format!(
                    "{index}    uint p = (uint)({place});\n    {t} a = {a};\n    dst[i] = {value};\n"
                ),
            )
        }
        17 => {
            // A loop whose end depends on the data.
            w.buffer(Input, t, "src");
            w.buffer(Output, t, "dst");
            let index = w.index();
            let value = w.value(&["a", "k"]);
            w.finish(
                Kind::Own,
                &format!(
                    "{index}    {t} a = {a};\n    for (int k = 0; k < 9; k++) {{\n        if (a > 90) \
                     break;\n        a = {value};\n    }}\n    switch ((int)(i & 3)) {{\n    case 0: dst[i] = a; \
                     break;\n    case 2: dst[i] = ({u})a + 1; break;\n    default: dst[i] = ({u})a + \
                     2;\n    }}\n",
                    u = ty.unsigned
                ),
            )
        }
        // Exchange within a work-group.
        18 | 19 => {
            w.buffer(Input, t, "src");
            w.buffer(Output, t, "dst");
            let declared = if form == 18 {
                format!("    local {t} s[{GROUP}];\n")
            } else {
                w.arguments.push(format!("local {t} *s"));
                w.parameters.push(Local(GROUP * ty.size));
                String::new()
            };
            let value = w.value(&["a", "b"]);
            let mut b = format!("s[{} - l]", GROUP - 1);
            if w.random.u8(..) < 64 {
                w.before = format!(
                    "__attribute__((noinline)) {t} {}_turned(local const {t} *s, size_t l) {{ return {b}; }}\n",
                    w.name
                );
                b = format!("{}_turned(s, l)", w.name);
            }
            w.finish(
                Kind::Group,
                &format!(
                    "{declared}    size_t i = get_global_id(0), l = get_local_id(0);\n    {t} a = {a};\n    s[l] = \
                     a;\n    barrier(CLK_LOCAL_MEM_FENCE);\n    {t} b = {b};\n    dst[i] = {value};\n"
                ),
            )
        }
        20 => {
            w.buffer(Input, t, "src");
            w.buffer(Output, t, "dst");
            let value = w.value(&["a"]);
            w.finish(
                Kind::Group,
                &format!(
                    "    size_t i = get_group_id(0) * get_local_size(0) + get_local_id(0) + \
                     get_global_offset(0);\n    {t} a = {a};\n    dst[i] = {value};\n"
                ),
            )
        }
        // Writes the same value in all work-items.
        21 => {
            w.buffer(Output, t, "dst");
            let mut values = vec!["3"];
            if w.random.bool() {
                w.number();
                values.push("s");
            }
            let index = w.index();
            let value = w.value(&values);
            w.finish(Kind::Certain, &format!("{index}    dst[i] = {value};\n"))
        }
        // Elements of other work-items.
        22 | 23 => {
            w.buffer(Input, t, "src");
            w.buffer(Output, t, "dst");
            let value = w.plain("b");
            let other = ["src[i + 1]", "src[i > 0 ? i - 1 : 0]", "src[i ^ 1]"][w.random.usize(..3)];
            w.finish(
                Kind::Cross,
                &format!(
                    "    size_t i = get_global_id(0);\n    {t} a = {a}, b = {};\n    dst[i] = {value};\n",
                    read(other)
                ),
            )
        }
        24 => {
            w.buffer(Input, t, "src");
            w.buffer(Index, "uint", "index");
            w.buffer(Output, t, "dst");
            let value = w.plain("a");
            w.finish(
                Kind::Cross,
                &format!(
                    "    size_t i = get_global_id(0);\n    {t} a = {};\n    dst[i] = {value};\n",
                    read("src[index[i] & 31]")
                ),
            )
        }
        25 => {
            w.buffer(Input, t, "src");
            w.buffer(Output, t, "dst");
            w.finish(
                Kind::Cross,
                &format!(
                    "    size_t i = get_global_id(0);\n    size_t j = get_global_size(0) + 2 * \
                     get_global_offset(0) - 1 - i;\n    dst[j] = {a};\n"
                ),
            )
        }
        26 => {
            (w.ty, w.step) = (TYPES[5], 4);
            w.buffer(Input, "uint", "src");
            w.buffer(Both, "uint", "bins");
            w.finish(
                Kind::Cross,
                "    size_t i = get_global_id(0);\n    atomic_add(&bins[src[i] & 7], src[i] >> 3);\n",
            )
        }
        _ => {
            w.buffer(Input, t, "src");
            w.buffer(Output, t, "dst");
            let a =
                read(&format!("((global {t} *)((ulong)src + (ulong)(i + 1) * {}))[0]", ty.size));
            let value = w.plain("a");
            w.finish(
                Kind::Cross,
                &format!(
                    "    size_t i = get_global_id(0);\n    {t} a = {a};\n    dst[i] = {value};\n"
                ),
            )
        }
    }
}

/// Number of forms of kernels, and the first form that reads elements of other work-items.
pub(crate) const FORMS: usize = 28;
pub(crate) const CROSS: usize = 22;
/// Form of kernels that map one element to one, and depend on the value that is read.
pub(crate) const PLAIN: usize = 100;

/// Creates the kernels of a module, named by their number. Few types are used, so that kernels fit together.
pub(crate) fn pool(random: &mut Rng, count: usize) -> Vec<Kernel> {
    let main = [0, 1].map(|_| TYPES[random.usize(..TYPES.len())]);
    let mut kernels = Vec::new();
    for at in 0..count {
        let is_main = random.u8(..) < 200;
        let ty = if is_main { main[at % 2] } else { TYPES[random.usize(..TYPES.len())] };
        let form = match random.u8(0..20) {
            // Forms that every case needs.
            _ if at < 4 => PLAIN,
            _ if at < 8 => CROSS + random.usize(..FORMS - CROSS),
            0..=16 => random.usize(..CROSS),
            _ => CROSS + random.usize(..FORMS - CROSS),
        };
        kernels.push(kernel(random, format!("k{at}"), ty, form));
    }
    kernels
}
