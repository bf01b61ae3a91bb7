//! Locks and atomics of the store, so that a model checker may take their place.
//!
//! Everything in this crate that threads share is built from these. Under `--cfg shuttle` they are those of `shuttle`,
//! which runs a test under many schedules of its own choice (`tests/races.rs`, `cargo xtask races`); what they look like
//! is the same.
#[cfg(not(shuttle))]
pub(crate) use {
    arc_swap::ArcSwap,
    parking_lot::{Condvar, Mutex, RwLock},
    std::sync::atomic,
};

#[cfg(shuttle)]
pub(crate) use {
    checked::{ArcSwap, Condvar, Mutex, RwLock},
    shuttle::sync::atomic,
};

/// What `parking_lot` and `arc-swap` offer, over the primitives of the model checker. Nothing is ever poisoned: a panic
/// ends the schedule.
#[cfg(shuttle)]
mod checked {
    use std::ops::{Deref, DerefMut};
    use std::sync::{Arc, PoisonError};

    use shuttle::sync;

    #[derive(Default)]
    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    /// `None` only while a condition variable has the lock.
    pub(crate) struct MutexGuard<'m, T>(Option<sync::MutexGuard<'m, T>>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        #[expect(clippy::expect_used, reason = "a condition variable gives the lock back before it returns")]
        fn deref(&self) -> &T {
            self.0.as_ref().expect("the lock is held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        #[expect(clippy::expect_used, reason = "a condition variable gives the lock back before it returns")]
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("the lock is held")
        }
    }

    #[derive(Default)]
    pub(crate) struct Condvar(sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar::default()
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take();
            guard.0 = held.map(|held| self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    #[derive(Default)]
    pub(crate) struct RwLock<T>(sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> RwLock<T> {
            RwLock(sync::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> sync::RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(crate) fn write(&self) -> sync::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A pointer that is read and replaced whole.
    pub(crate) struct ArcSwap<T>(sync::Mutex<Arc<T>>);

    impl<T> ArcSwap<T> {
        pub(crate) fn from_pointee(value: T) -> ArcSwap<T> {
            ArcSwap(sync::Mutex::new(Arc::new(value)))
        }

        pub(crate) fn load(&self) -> Arc<T> {
            self.load_full()
        }

        pub(crate) fn load_full(&self) -> Arc<T> {
            Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
        }

        pub(crate) fn store(&self, value: Arc<T>) {
            let old = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), value);
            // What it holds may take locks when it goes.
            drop(old);
        }
    }
}
