//! Elements of random pictures: how kernels declare, read, convert and write them.

use fastrand::Rng;

/// Type of the elements of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    /// Type in which kernels calculate, without the number of components.
    scalar: &'static str,
    components: usize,
    storage: Storage,
}

/// Storage of an element in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    /// As a value of its type.
    Plain,
    /// As a number of half precision.
    Half,
    /// As its components, without the padding of vectors of three.
    Packed,
}

const fn element(scalar: &'static str, components: usize, storage: Storage) -> Element {
    Element { scalar, components, storage }
}

pub(crate) const FLOAT: Element = element("float", 1, Storage::Plain);

const ELEMENTS: [Element; 12] = [
    FLOAT,
    FLOAT,
    element("float", 2, Storage::Plain),
    element("float", 4, Storage::Plain),
    element("float", 4, Storage::Plain),
    element("float", 3, Storage::Packed),
    element("float", 1, Storage::Half),
    element("uint", 1, Storage::Plain),
    element("ushort", 2, Storage::Plain),
    element("uchar", 1, Storage::Plain),
    element("uchar", 4, Storage::Plain),
    element("uchar", 3, Storage::Packed),
];

impl Element {
    pub(crate) fn any(random: &mut Rng) -> Self {
        ELEMENTS[random.usize(..ELEMENTS.len())]
    }

    /// Returns the type in which kernels calculate.
    pub(crate) fn value(self) -> String {
        match self.components {
            1 => self.scalar.to_owned(),
            count => format!("{}{count}", self.scalar),
        }
    }

    /// Returns the type that pointers to elements point to.
    pub(crate) fn pointee(self) -> String {
        match self.storage {
            Storage::Plain => self.value(),
            Storage::Half => "half".to_owned(),
            Storage::Packed => self.scalar.to_owned(),
        }
    }

    /// Returns the size of an element in bytes.
    pub(crate) fn size(self) -> usize {
        match self.storage {
            Storage::Plain => self.value_size(),
            Storage::Half => 2,
            Storage::Packed => self.value_size() / 4 * 3,
        }
    }

    /// Returns the size of a value in bytes, as it is in local memory.
    pub(crate) fn value_size(self) -> usize {
        let scalar = match self.scalar {
            "uchar" => 1,
            "ushort" => 2,
            _ => 4,
        };
        scalar * self.components.next_power_of_two()
    }

    pub(crate) fn is_float(self) -> bool {
        self.scalar == "float"
    }

    /// Returns the expression that reads an element of a buffer.
    pub(crate) fn read(self, buffer: &str, index: &str) -> String {
        match self.storage {
            Storage::Plain => format!("{buffer}[{index}]"),
            Storage::Half => format!("vload_half({index}, {buffer})"),
            Storage::Packed => format!("vload3({index}, {buffer})"),
        }
    }

    /// Returns the statement that writes a value to an element of a buffer.
    pub(crate) fn write(self, value: &str, buffer: &str, index: &str) -> String {
        match self.storage {
            Storage::Plain => format!("{buffer}[{index}] = {value};"),
            // Numbers stay finite.
            Storage::Half => {
                format!("vstore_half(clamp({value}, -999.0f, 999.0f), {index}, {buffer});")
            }
            Storage::Packed => format!("vstore3({value}, {index}, {buffer});"),
        }
    }

    /// Returns the expression that converts a value of this element to one of another element.
    pub(crate) fn converted(self, to: Self, value: &str) -> String {
        if self.value() == to.value() {
            return value.to_owned();
        }
        let first = if self.components == 1 { value.to_owned() } else { format!("({value}).x") };
        let converted = match to.is_float() {
            _ if self.scalar == to.scalar => first,
            true => format!("convert_float({first})"),
            false => format!("convert_{}_sat({first})", to.scalar),
        };
        format!("({})({converted})", to.value())
    }

    /// Returns a constant of the type in which kernels calculate.
    pub(crate) fn constant(self, random: &mut Rng) -> String {
        let number = match self.is_float() {
            true => ["0.5f", "0.25f", "-1.0f", "0.3f", "1.7f"][random.usize(..5)],
            false => ["1", "3", "2", "5", "7"][random.usize(..5)],
        };
        format!("({})({number})", self.value())
    }

    /// Fills bytes with elements whose numbers are finite.
    pub(crate) fn fill(self, random: &mut Rng, bytes: &mut [u8]) {
        random.fill(bytes);
        match self.storage {
            Storage::Half => {
                for half in bytes.as_chunks_mut::<2>().0 {
                    // Exponents between 2^-1 and 2^2.
                    half[1] = (half[1] & 0x83) | (0x38 + 4 * ((half[1] >> 2) & 3));
                }
            }
            Storage::Plain | Storage::Packed if self.is_float() => {
                for float in bytes.as_chunks_mut::<4>().0 {
                    *float = (random.i32(-1000..1000) as f32 / 64.0).to_le_bytes();
                }
            }
            Storage::Plain | Storage::Packed => {}
        }
    }
}
