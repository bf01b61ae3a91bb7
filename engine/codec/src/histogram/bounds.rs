//! Bounds of buckets, to the bit as Prometheus prints them.
use super::{CUSTOM_BUCKETS_SCHEMA, Histogram, HistogramCounts, Span};

/// A bucket with something in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bucket<T> {
    /// Lower bound.
    pub lower: f64,
    /// Upper bound.
    pub upper: f64,
    /// Whether the lower bound belongs to it.
    pub has_lower: bool,
    /// Whether the upper bound belongs to it.
    pub has_upper: bool,
    /// What fell into it.
    pub count: T,
}

/// The buckets of a histogram that are not empty, in the order of their bounds.
#[derive(Debug, Clone, PartialEq)]
pub enum Buckets {
    /// Of an integer histogram.
    Integer(Vec<Bucket<u64>>),
    /// Of a float histogram.
    Float(Vec<Bucket<f64>>),
}

impl Histogram {
    /// The buckets that are not empty.
    pub fn buckets(&self) -> Buckets {
        match &self.counts {
            HistogramCounts::Integer(counts) => {
                Buckets::Integer(self.filled(&counts.negative, counts.zero, &counts.positive))
            }
            HistogramCounts::Float(counts) => {
                Buckets::Float(self.filled(&counts.negative, counts.zero, &counts.positive))
            }
        }
    }

    fn filled<T: Copy + Default + PartialEq>(
        &self,
        negative: &[T],
        zero: T,
        positive: &[T],
    ) -> Vec<Bucket<T>> {
        let empty = T::default();
        let bound = |index: i32| upper_bound(index, self.schema, &self.custom_bounds);
        let side = |spans: &[Span], counts: &[T]| -> Vec<(f64, f64, T)> {
            let filled = indexes(spans).zip(counts).filter(|(_, count)| **count != empty);
            filled.map(|(index, &count)| (bound(index.saturating_sub(1)), bound(index), count)).collect()
        };
        let mut buckets = Vec::new();
        for (inner, outer, count) in side(&self.negative_spans, negative).into_iter().rev() {
            buckets.push(Bucket { lower: -outer, upper: -inner, has_lower: true, has_upper: false, count });
        }
        if zero != empty {
            let width = self.zero_threshold;
            buckets.push(Bucket {
                lower: -width,
                upper: width,
                has_lower: true,
                has_upper: true,
                count: zero,
            });
        }
        for (lower, upper, count) in side(&self.positive_spans, positive) {
            // Custom buckets begin with everything below their first bound.
            let has_lower = self.schema == CUSTOM_BUCKETS_SCHEMA && lower == f64::NEG_INFINITY;
            buckets.push(Bucket { lower, upper, has_lower, has_upper: true, count });
        }
        buckets
    }
}

/// Indexes of the buckets that spans name.
fn indexes(spans: &[Span]) -> impl Iterator<Item = i32> + '_ {
    let mut next = 0_i32;
    spans.iter().flat_map(move |span| {
        let first = next.saturating_add(span.offset);
        let end = first.saturating_add_unsigned(span.length);
        next = end;
        first..end
    })
}

/// The upper bound of the bucket with this index: of a custom one as the histogram names it, else 2 to the power of
/// index · 2^−schema.
pub fn upper_bound(index: i32, schema: i32, custom_bounds: &[f64]) -> f64 {
    if schema == CUSTOM_BUCKETS_SCHEMA {
        return match usize::try_from(index) {
            Ok(index) => custom_bounds.get(index).copied().unwrap_or(f64::INFINITY),
            Err(_) => f64::NEG_INFINITY,
        };
    }
    let (fraction, exponent) = if schema <= 0 {
        (0, i64::from(index) << (-schema).min(31))
    } else {
        let schema = schema.min(8);
        ((index & ((1 << schema) - 1)) << (8 - schema), i64::from(index) >> schema)
    };
    // The last bucket of numbers ends with the largest one: beyond are only the infinite ones.
    if fraction == 0 && exponent == 1024 {
        return f64::MAX;
    }
    let fraction = f64::from_bits(1022 << 52 | FRACTIONS[fraction as usize]);
    scaled(fraction, exponent + 1)
}

/// `value` times a power of two.
fn scaled(value: f64, exponent: i64) -> f64 {
    let half = exponent.clamp(-2200, 2200) / 2;
    let rest = exponent.clamp(-2200, 2200) - half;
    // Two steps reach the smallest numbers.
    let power = |exponent: i64| 2.0_f64.powi(exponent as i32);
    value * power(half) * power(rest)
}

/// Mantissas of 2^(n/256 − 1). The numbers are those of Prometheus' table (Apache-2.0), which are not always the
/// nearest ones: what is printed has to be the same.
#[rustfmt::skip]
#[expect(clippy::unreadable_literal, reason = "a table of mantissas, 13 digits each")]
const FRACTIONS: [u64; 256] = [
    0x0000000000000, 0x00b1afa5abcbf, 0x0163da9fb3335, 0x02168143b0281, 0x02c9a3e778061, 0x037d42e11bbcc,
    0x04315e86e7f84, 0x04e5f72f654b1, 0x059b0d3158574, 0x0650a0e3c1f89, 0x0706b29ddf6dd, 0x07bd42b72a836,
    0x0874518759bc8, 0x092bdf66607e0, 0x09e3ecac6f383, 0x0a9c79b1f3919, 0x0b5586cf9890f, 0x0c0f145e46c85,
    0x0cc922b7247f6, 0x0d83b23395dea, 0x0e3ec32d3d1a2, 0x0efa55fdfa9c5, 0x0fb66affed31a, 0x1073028d7233d,
    0x11301d0125b50, 0x11edbab5e2ab5, 0x12abdc06c31cb, 0x136a814f204aa, 0x1429aaea92ddf, 0x14e95934f312d,
    0x15a98c8a58e50, 0x166a45471c3c1, 0x172b83c7d517b, 0x17ed48695bbc0, 0x18af9388c8de9, 0x1972658375d2f,
    0x1a35beb6fcb75, 0x1af99f8138a1c, 0x1bbe084045cd3, 0x1c82f95281c6b, 0x1d4873168b9aa, 0x1e0e75eb44026,
    0x1ed5022fcd91c, 0x1f9c18438ce4c, 0x2063b88628cd6, 0x212be3578a819, 0x21f49917ddc95, 0x22bdda27912d0,
    0x2387a6e756238, 0x2451ffb82140a, 0x251ce4fb2a63e, 0x25e85711ece74, 0x26b4565e27cdd, 0x2780e341ddf2a,
    0x284dfe1f56380, 0x291ba7591bb6f, 0x29e9df51fdee1, 0x2ab8a66d10f13, 0x2b87fd0dad98f, 0x2c57e39771b2e,
    0x2d285a6e4030b, 0x2df961f641589, 0x2ecafa93e2f55, 0x2f9d24abd886a, 0x306fe0a31b715, 0x31432edeeb2fd,
    0x32170fc4cd831, 0x32eb83ba8ea32, 0x33c08b26416ff, 0x3496266e3fa2d, 0x356c55f929ff0, 0x36431a2de883a,
    0x371a7373aa9ca, 0x37f26231e7549, 0x38cae6d05d864, 0x39a401b7140ed, 0x3a7db34e59ff6, 0x3b57fbfec6cf4,
    0x3c32dc313a8e3, 0x3d0e544ede172, 0x3dea64c123422, 0x3ec70df1c5175, 0x3fa4504ac801b, 0x40822c367a024,
    0x4160a21f72e2a, 0x423fb2709468a, 0x431f5d950a896, 0x43ffa3f84b9d4, 0x44e086061892d, 0x45c2042a7d232,
    0x46a41ed1d0057, 0x4786d668b3236, 0x486a2b5c13cd0, 0x494e1e192aed2, 0x4a32af0d7d3de, 0x4b17dea6db7d7,
    0x4bfdad5362a27, 0x4ce41b817c114, 0x4dcb299fddd0d, 0x4eb2d81d8abfe, 0x4f9b2769d2ca7, 0x508417f4531ef,
    0x516daa2cf6642, 0x5257de83f4eef, 0x5342b569d4f81, 0x542e2f4f6ad27, 0x551a4ca5d920d, 0x56070dde910d0,
    0x56f4736b527da, 0x57e27dbe2c4cf, 0x58d12d497c7fc, 0x59c0827ff07cb, 0x5ab07dd485429, 0x5ba11fba87a02,
    0x5c9268a5946b6, 0x5d84590998b92, 0x5e76f15ad2148, 0x5f6a320dceb71, 0x605e1b976dc08, 0x6152ae6cdf6f4,
    0x6247eb03a5584, 0x633dd1d1929fd, 0x6434634ccc31e, 0x652b9febc8fb5, 0x6623882552224, 0x671c1c70833f5,
    0x68155d44ca972, 0x690f4b19e9537, 0x6a09e667f3bcc, 0x6b052fa75173e, 0x6c012750bdabe, 0x6cfdcddd47645,
    0x6dfb23c651a2e, 0x6ef9298593ae4, 0x6ff7df9519482, 0x70f7466f42e85, 0x71f75e8ec5f73, 0x72f8286ead089,
    0x73f9a48a58172, 0x74fbd35d7cbfc, 0x75feb564267c8, 0x77024b1ab6e09, 0x780694fde5d3e, 0x790b938ac1cf5,
    0x7a11473eb0186, 0x7b17b0976cfda, 0x7c1ed0130c131, 0x7d26a62ff86ef, 0x7e2f336cf4e61, 0x7f3878491c490,
    0x80427543e1a10, 0x814d2add106d8, 0x82589994cce11, 0x8364c1eb941f6, 0x8471a4623c7ab, 0x857f4179f5b1f,
    0x868d99b4492eb, 0x879cad931a435, 0x88ac7d98a6697, 0x89bd0a478580d, 0x8ace5422aa0db, 0x8be05bad61778,
    0x8cf3216b5448b, 0x8e06a5e0866d8, 0x8f1ae99157736, 0x902fed0282c8a, 0x9145b0b91ffc5, 0x925c353aa2fe2,
    0x93737b0cdc5e4, 0x948b82b5f98e4, 0x95a44cbc8520d, 0x96bdd9a7670b1, 0x97d829fde4e4f, 0x98f33e47a22a2,
    0x9a0f170ca07b8, 0x9b2bb4d53fe0b, 0x9c49182a3f08f, 0x9d674194bb8d4, 0x9e86319e32321, 0x9fa5e8d07f29c,
    0xa0c667b5de564, 0xa1e7aed8eb8bb, 0xa309bec4a2d32, 0xa42c980460ad7, 0xa5503b23e255b, 0xa674a8af46051,
    0xa799e1330b356, 0xa8bfe53c12e57, 0xa9e6b5579fdbe, 0xab0e521356eb9, 0xac36bbfd3f378, 0xad5ff3a3c2773,
    0xae89f995ad3ac, 0xafb4ce622f2fe, 0xb0e07298db663, 0xb20ce6c9a8950, 0xb33a2b84f15fa, 0xb468415b749b0,
    0xb59728de55938, 0xb6c6e29f1c529, 0xb7f76f2fb5e45, 0xb928cf22749e2, 0xba5b030a10647, 0xbb8e0b79a6f1d,
    0xbcc1e904bc1d0, 0xbdf69c3f3a205, 0xbf2c25bd71e06, 0xc06286141b33b, 0xc199bdd85529a, 0xc2d1cd9fa652a,
    0xc40ab5fffd078, 0xc544778fafb20, 0xc67f12e57d149, 0xc7ba88988c931, 0xc8f6d9406e7b2, 0xca3405751c4d8,
    0xcb720dcef9066, 0xccb0f2e6d1672, 0xcdf0b555dc3f6, 0xcf3155b5bab70, 0xd072d4a078979, 0xd1b532b08c966,
    0xd2f87080d89ee, 0xd43c8eacaa1d3, 0xd5818dcfba486, 0xd6c76e862e6d2, 0xd80e316c98396, 0xd955d71ff6074,
    0xda9e603db3284, 0xdbe7cd63a8313, 0xdd321f301b45e, 0xde7d5641c0656, 0xdfc97337b9b5d, 0xe11676b197d16,
    0xe264614f5a126, 0xe3b333b16ee0f, 0xe502ee78b3ff5, 0xe653924676d75, 0xe7a51fbc74c81, 0xe8f7977cdb73e,
    0xea4afa2a490d8, 0xeb9f4867cca6d, 0xecf482d8e67ee, 0xee4aaa218850e, 0xefa1bee615a26, 0xf0f9c1cb64129,
    0xf252b376bba95, 0xf3ac948dd7272, 0xf50765b6e453e, 0xf6632798844f6, 0xf7bfdad9cbe10, 0xf91d802243c86,
    0xfa7c1819e90d6, 0xfbdba3692d512, 0xfd3c22b8f71ee, 0xfe9d96b2a23d6,
];

#[cfg(test)]
mod tests {
    use super::upper_bound;

    #[test]
    fn bounds_are_those_that_prometheus_prints() {
        for (index, schema, bound) in [
            (-1, 1, 0.707_106_781_186_547_5),
            (0, 3, 1.0),
            (1, 0, 2.0),
            (-1, 0, 0.5),
            (3, -1, 64.0),
            (1, 2, 1.189_207_115_002_721),
            (1024, 0, f64::MAX),
            (1025, 0, f64::INFINITY),
            (256, -2, f64::MAX),
            (-1073, 0, 1e-323),
            (-1074, 0, 5e-324),
        ] {
            assert_eq!(upper_bound(index, schema, &[]).to_bits(), f64::to_bits(bound), "{index} {schema}");
        }
        assert_eq!(upper_bound(0, super::CUSTOM_BUCKETS_SCHEMA, &[2.5]), 2.5);
        assert_eq!(upper_bound(1, super::CUSTOM_BUCKETS_SCHEMA, &[2.5]), f64::INFINITY);
        assert_eq!(upper_bound(-1, super::CUSTOM_BUCKETS_SCHEMA, &[2.5]), f64::NEG_INFINITY);
    }
}
