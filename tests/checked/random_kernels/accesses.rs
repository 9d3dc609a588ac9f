//! Accesses of random kernels, and the statements around them.

use super::Writer;

/// Addition of a zero that the compiler of OpenCL C does not know.
const UNKNOWN_ZERO: &str = "+ (int)(get_work_dim() >> 4)";

/// Buffer of scalars that kernels read: address space, name, name of its length, and type.
type Input = (&'static str, &'static str, &'static str, &'static str);

impl Writer<'_> {
    /// Returns an input of scalars.
    fn input(&mut self) -> Input {
        let element = self.kernel.input.0;
        match self.rng.u8(..5) {
            0 | 1 => ("global", "in0", "n0", element),
            2 | 3 => ("global", "in1", "n1", element),
            _ => ("constant", "fixed", "nfixed", "int"),
        }
    }

    /// Returns an expression that loads an element of an input.
    fn loading((space, buffer, length, element): Input, index: &str) -> String {
        format!("LOAD({space}, {element}, {buffer}, {length}, {index})")
    }

    pub(super) fn load(&mut self) {
        let (input, index) = (self.input(), self.index());
        self.loaded(&Self::loading(input, &index));
    }

    /// Writes a load whose index is compared with the length, or limited to it.
    pub(super) fn guarded_load(&mut self) {
        let input = self.input();
        let (index, count) = (self.int(), self.fresh());
        let (_, _, length, element) = input;
        self.line(&format!("int {count} = (int)({length} / sizeof({element}));"));
        let within = |index: &str| Self::loading(input, index);
        let value = match self.rng.u8(..6) {
            0 => format!("({index} >= 0 && {index} < {count} ? {} : 0)", within(&index)),
            1 => format!("((uint){index} < (uint){count} ? {} : 0)", within(&index)),
            2 => within(&format!("max(min({index}, {count} - 1), 0)")),
            3 => within(&format!("clamp({index}, 0, max({count} - 1, 0))")),
            4 => within(&format!("((uint){index} % max((uint){count}, 1u))")),
            _ => within(&format!("((uint){index} < (uint){count} ? {index} : 0)")),
        };
        self.loaded(&value);
    }

    /// Writes a load of a vector, by its type or by `vload`, and the use of a component.
    pub(super) fn vector_load(&mut self) {
        let ((element, _), width) = self.kernel.vector;
        let index = self.index();
        let name = self.fresh();
        // A value that `vload` loads must not be part of an index.
        let by_function = !self.is_indirect && self.rng.bool();
        let value = match by_function {
            true => format!("VLOAD(global, {element}, {width}, vec, nvec, {index})"),
            false => {
                let ty = format!("{element}{width}");
                format!("LOAD(global, {ty}, (global const {ty} *)vec, nvec, {index})")
            }
        };
        self.line(&format!("{element}{width} {name} = {value};"));
        let variable = ["x", "id", "s0"][self.rng.usize(..3)];
        let component = match !self.is_tame && self.rng.bool() {
            true => format!("COMPONENT({name}, {width}, ({variable} & 15))"),
            false => format!("{name}.s{}", self.rng.usize(..width.min(10))),
        };
        self.loaded(&component);
    }

    pub(super) fn member_load(&mut self) {
        let index = self.index();
        let (at, fixed) = (self.int(), self.rng.usize(..4));
        let member = match self.rng.u8(..5) {
            0 => "a".to_owned(),
            1 => format!("b[{at} & 3]"),
            2 => format!("b[{fixed}]"),
            3 => "c".to_owned(),
            _ => "d".to_owned(),
        };
        self.loaded(&format!("MEMBER(global, pairs, npairs, {index}, {member})"));
    }

    /// Writes a load of a constant whose value the compiler knows. The index is inside, since a compiler may assume
    /// that such a value is one of those that are there.
    pub(super) fn constant_load(&mut self) {
        let index = format!("({} & 15)", self.int());
        self.loaded(&format!("LOAD(constant, int, table, (ulong)sizeof(table), {index})"));
    }

    /// Writes a private array, which is read, or written and read. A compiler may give what was written to a read
    /// with the same index, even outside of the array, so that what is read is inside if something is written. A compiler
    /// that knows an index to be outside may drop the whole kernel, so that no index is constant.
    pub(super) fn private_array(&mut self) {
        let (name, values) = (self.fresh(), [self.int(), self.int(), self.int()]);
        let size = if self.is_tame { 16 } else { [4, 8, 13][self.rng.usize(..3)] };
        let length = format!("(ulong)sizeof({name})");
        self.line(&format!("int {name}[{size}] = {{ {} }};", values.join(", ")));
        let mut index = self.index();
        for _ in 0..self.rng.usize(..3) {
            let (place, value) = (std::mem::replace(&mut index, self.int()), self.int());
            let place = format!("({place} {UNKNOWN_ZERO})");
            self.line(&format!("{{ STORE(private, int, {name}, {length}, {place}, {value}); }}"));
            index = format!("({index} & 3)");
        }
        let index = format!("({index} {UNKNOWN_ZERO})");
        self.loaded(&format!("LOAD(private, int, {name}, {length}, {index})"));
    }

    pub(super) fn helper(&mut self) {
        let element = self.kernel.input.0;
        let (buffer, length) = [("in0", "n0"), ("in1", "n1")][self.rng.usize(..2)];
        let (a, b, c) = (self.start(), self.start(), self.rng.i32(-3..5));
        let c = if self.is_tame { c.abs() } else { c };
        let value = match self.rng.bool() {
            true => format!("picked_{element}({buffer}, {length}, ({a} + 16), {b} PASS)"),
            false => format!("ranged_{element}({buffer}, {length}, {a}, {b}, {c} PASS)"),
        };
        self.loaded(&value);
    }

    /// Writes a load through a pointer to one of two inputs.
    pub(super) fn chosen_pointer(&mut self) {
        let (condition, index) = (self.condition(), self.index());
        let (element, name) = (self.kernel.input.0, self.fresh());
        self.line(&format!(
            "global const {element} *p{name} = {condition} ? in0 : in1;
             ulong n{name} = {condition} ? n0 : n1;"
        ));
        self.loaded(&format!("LOAD(global, {element}, p{name}, n{name}, {index})"));
    }

    /// Writes a loop that moves a pointer, or in the reference an index.
    pub(super) fn moving_pointer(&mut self) {
        let element = self.kernel.input.0;
        let (buffer, length) = [("in0", "n0"), ("in1", "n1")][self.rng.usize(..2)];
        let (start, count) = (self.start(), self.int());
        let (step, name) = (self.rng.i32(-3..6), self.fresh());
        let step = if self.is_tame { step.abs() } else { step };
        self.line(&format!("long at{name} = {start}; int all{name} = 0;"));
        let walk = format!(
            "for (int k = ({count} & 7); k > 0; k--) {{
                all{name} = (int)((uint)all{name} * 3u + (uint)(int)LOAD(global, {element}, WALK));
                at{name} += {step};
                MOVE
            }}"
        );
        let plain = walk.replace("WALK", &format!("p{name}, {length}, 0"));
        let plain = plain.replace("MOVE", &format!("p{name} += {step};"));
        let reference = walk.replace("WALK", &format!("{buffer}, {length}, at{name}"));
        let reference = reference.replace("MOVE", "");
        self.line(&format!(
            "#ifdef NOTE\n{reference}\n#else\nglobal const {element} *p{name} = {buffer} + {start};\n{plain}\n#endif"
        ));
        self.loaded(&format!("all{name}"));
    }

    /// Writes an atomic operation whose result does not depend on the order of work-items.
    pub(super) fn atomic(&mut self) {
        let (index, value) = (self.index(), self.int());
        if self.only_reads_counts {
            return self.loaded(&format!("ATOMIC(atomic_or, counts, ncounts, {index}, 0)"));
        }
        let function = ["atomic_add", "atomic_sub"][self.rng.usize(..2)];
        self.line(&format!("(void)ATOMIC({function}, counts, ncounts, {index}, {value});"));
    }

    /// Writes local memory that is set, shared by a barrier, and read.
    pub(super) fn local_memory(&mut self) {
        let element = self.kernel.input.0;
        let (factor, shift) = (self.rng.i32(1..4), self.rng.i32(-1..3));
        let (own, tile) = (self.int(), self.rng.usize(1..40));
        let (shift, tile) = if self.is_tame { (0, 256) } else { (shift, tile) };
        self.line(&format!(
            "local int tile[{tile}];
             spread_{element}(loc, nloc, (uint)lid, (uint)items, 5 PASS);
             spread_{element}(tile, sizeof(tile), (uint)lid, (uint)items, 9 PASS);
             barrier(CLK_LOCAL_MEM_FENCE);
             {{ STORE(local, int, loc, nloc, (lid * {factor} + {shift}), {own}); }}
             {{ STORE(local, int, tile, sizeof(tile), (lid * {factor} + {shift}), {own}); }}
             barrier(CLK_LOCAL_MEM_FENCE);"
        ));
        let index = self.index();
        self.loaded(&format!("LOAD(local, int, loc, nloc, {index})"));
        let index = self.index();
        self.loaded(&format!("LOAD(local, int, tile, (ulong)sizeof(tile), {index})"));
    }

    /// Writes a choice of blocks.
    pub(super) fn branches(&mut self) {
        if self.rng.bool() {
            let condition = self.condition();
            self.line(&format!("if ({condition}) {{"));
            self.block(2);
            self.line("} else {");
            self.block(1);
            self.line("}");
            return;
        }
        let value = self.int();
        self.line(&format!("switch ({value} & 3) {{"));
        for case in ["case 0:", "case 2:", "default:"] {
            self.line(&format!("{case} {{"));
            self.block(1);
            let end = if self.rng.bool() { "} break;" } else { "}" };
            self.line(end);
        }
        self.line("}");
    }

    /// Writes a loop of at most eight rounds.
    pub(super) fn repetition(&mut self) {
        let (count, name) = (self.int(), format!("k{}", self.fresh()));
        let most = self.rng.u8(1..8);
        let (head, tail) = match self.rng.u8(..4) {
            0 => (
                format!("for (int {name} = 0; {name} < ({count} & {most}); {name}++) {{"),
                "}".to_owned(),
            ),
            1 => (format!("for (int {name} = {most}; {name} >= 0; {name}--) {{"), "}".to_owned()),
            2 => (
                format!("int {name} = 0; do {{"),
                format!("{name}++; }} while ({name} < ({count} & {most}));"),
            ),
            _ => (
                format!(
                    "for (uint u{name} = 0; u{name} < {most}u; u{name}++) {{ int {name} = (int)u{name};"
                ),
                format!("if ({}) break; }}", self.condition()),
            ),
        };
        self.line(&head);
        let known = self.ints.len();
        self.ints.push(name.clone());
        self.block(1);
        let outer = if self.rng.bool() { "id".to_owned() } else { self.start() };
        let factor = self.rng.i32(1..5);
        let input = self.input();
        let value =
            Self::loading(input, &format!("(int)((uint){outer} * {factor}u + (uint){name})"));
        self.loaded(&value);
        self.ints.truncate(known);
        self.line(&tail);
    }

    /// Writes elements that are the work-item's own.
    pub(super) fn outputs(&mut self) {
        let (element, _) = self.kernel.own;
        let ((part, _), width) = self.kernel.own_vector;
        let own = |this: &mut Self| {
            let (odd, shift) = (1 + 2 * this.rng.u32(..2), this.rng.i32(-2..3));
            let shift = if this.is_tame { 0 } else { shift };
            format!("(int)((uint)id * {odd}u + (uint)({shift}))")
        };
        let index = own(self);
        // Few bits, so that floating-point numbers have the value.
        self.line(&format!(
            "{{ STORE(global, {element}, own, nown, {index}, ({element})(int)(sum & 0xffff)); }}"
        ));
        if self.rng.bool() {
            let index = own(self);
            let value = format!("({part}{width})(({part})sum)");
            if width == 3 || self.rng.bool() {
                self.line(&format!(
                    "{{ VSTORE(global, {part}, {width}, outv, noutv, {index}, {value}); }}"
                ));
            } else {
                let ty = format!("{part}{width}");
                self.line(&format!(
                    "{{ STORE(global, {ty}, (global {ty} *)outv, noutv, {index}, {value}); }}"
                ));
            }
        }
        if self.rng.u8(..3) == 0 {
            let index = own(self);
            let (at, value) = (self.int(), self.int());
            self.line(&format!(
                "{{ SET_MEMBER(global, outp, noutp, {index}, a, {value}); }}
                 {{ SET_MEMBER(global, outp, noutp, {index}, b[{at} & 3], (short)sum); }}"
            ));
        }
    }
}
