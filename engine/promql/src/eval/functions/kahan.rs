//! Sums whose rounding errors are carried along (Neumaier's variant of Kahan summation).

/// A sum and its compensation, kept apart until the end.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::eval) struct Sum {
    pub sum: f64,
    pub compensation: f64,
}

impl Sum {
    pub const fn starting_at(sum: f64) -> Sum {
        Sum { sum, compensation: 0.0 }
    }

    /// The sum with one more value.
    #[must_use]
    pub fn plus(self, value: f64) -> Sum {
        let sum = self.sum + value;
        let compensation = if sum.is_infinite() {
            0.0
        } else if self.sum.abs() >= value.abs() {
            self.compensation + ((self.sum - sum) + value)
        } else {
            self.compensation + ((value - sum) + self.sum)
        };
        Sum { sum, compensation }
    }

    pub fn add(&mut self, value: f64) {
        *self = self.plus(value);
    }

    pub fn total(self) -> f64 {
        self.sum + self.compensation
    }
}

/// A mean: the sum divided at the end, or, once the sum would overflow, a mean that is moved by each value.
#[derive(Debug, Clone, Copy)]
pub(in crate::eval) struct Mean {
    /// The sum, or the moving mean.
    sum: Sum,
    count: f64,
    moving: bool,
}

impl Mean {
    pub const fn starting_at(value: f64) -> Mean {
        Mean { sum: Sum::starting_at(value), count: 1.0, moving: false }
    }

    pub fn add(&mut self, value: f64) {
        self.count += 1.0;
        if !self.moving {
            let sum = self.sum.plus(value);
            if !sum.sum.is_infinite() {
                self.sum = sum;
                return;
            }
            self.moving = true;
            self.sum.sum /= self.count - 1.0;
            self.sum.compensation /= self.count - 1.0;
        }
        let share = (self.count - 1.0) / self.count;
        let scaled = Sum { sum: share * self.sum.sum, compensation: share * self.sum.compensation };
        self.sum = scaled.plus(value / self.count);
    }

    pub fn value(self) -> f64 {
        if self.moving {
            self.sum.total()
        } else {
            self.sum.sum / self.count + self.sum.compensation / self.count
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Mean, Sum};

    #[test]
    fn what_cancels_out_leaves_the_small_values() {
        let mut sum = Sum::default();
        for value in [1.0, 1e100, 1.0, -1e100] {
            sum.add(value);
        }
        assert_eq!(sum.total(), 2.0);
    }

    #[test]
    fn a_mean_survives_a_sum_that_overflows() {
        let mut mean = Mean::starting_at(f64::MAX);
        mean.add(f64::MAX);
        assert_eq!(mean.value(), f64::MAX);
    }
}
