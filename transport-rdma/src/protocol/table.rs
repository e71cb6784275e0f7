//! Numbered places, few and reused.
//!
//! Owns [`Table`]: a bounded number of slots, each with a generation that is another one for every new
//! tenant. A number on the wire is the slot in the low 16 bits and the generation in the high 16, as in a
//! call's id. Invariant: a number that was removed names nothing until its slot had 65,535 more tenants.
//! Never: grows past its bound, whatever numbers a peer names.

#[derive(Debug)]
struct Slot<T> {
    generation: u16,
    tenant: Option<T>,
}

/// Up to a fixed number of things, each with a number.
#[derive(Debug)]
pub(super) struct Table<T> {
    slots: Vec<Slot<T>>,
    /// Free slots: the longest unused is taken first, so that a number stays unused for long.
    free: std::collections::VecDeque<u16>,
    capacity: u16,
}

impl<T> Table<T> {
    pub(super) fn new(capacity: u16) -> Self {
        Self { slots: Vec::new(), free: std::collections::VecDeque::new(), capacity }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn has_room(&self) -> bool {
        self.len() < usize::from(self.capacity)
    }

    /// Takes a slot; `None` when all are taken.
    pub(super) fn insert(&mut self, tenant: T) -> Option<u32> {
        if self.slots.len() < usize::from(self.capacity) && self.free.is_empty() {
            self.free.push_back(self.slots.len() as u16);
            self.slots.push(Slot { generation: 0, tenant: None });
        }
        let index = self.free.pop_front()?;
        let slot = &mut self.slots[usize::from(index)];
        // Zero is no generation, so that a number is never zero.
        slot.generation = slot.generation.checked_add(1).unwrap_or(1);
        slot.tenant = Some(tenant);
        Some(u32::from(slot.generation) << 16 | u32::from(index))
    }

    pub(super) fn find(&mut self, number: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut(usize::from(number as u16))?;
        if u32::from(slot.generation) == number >> 16 { slot.tenant.as_mut() } else { None }
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        self.find(number)?;
        self.free.push_back(number as u16);
        self.slots[usize::from(number as u16)].tenant.take()
    }

    /// Every tenant with its number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let number = u32::from(slot.generation) << 16 | index as u32;
            slot.tenant.as_ref().map(|tenant| (number, tenant))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_its_tenant_and_never_the_next_one() {
        let mut table = Table::new(2);
        let (a, b) = (table.insert('a').expect("free"), table.insert('b').expect("free"));
        assert_eq!(table.insert('c'), None, "full");
        assert!(!table.has_room());
        assert_eq!(table.remove(a), Some('a'));
        assert_eq!(table.remove(a), None, "a duplicate");
        let c = table.insert('c').expect("free again");
        assert_eq!(c & 0xffff, a & 0xffff, "the same slot");
        assert_eq!(table.find(a), None, "the past");
        assert_eq!(table.find(c + (1 << 16)), None, "the future");
        assert_eq!(table.find(c), Some(&mut 'c'));
        assert_eq!(table.iter().map(|(number, _)| number).collect::<Vec<_>>(), [c, b]);
    }

    #[test]
    fn no_number_is_zero_and_unknown_ones_name_nothing() {
        let mut table = Table::new(1);
        for _ in 0..70_000 {
            let number = table.insert(()).expect("free");
            assert_ne!(number >> 16, 0);
            table.remove(number);
            assert_eq!(table.find(number), None);
        }
        for number in [0, 1, u32::MAX, 0x1_0001] {
            assert_eq!(table.find(number), None);
        }
        assert_eq!(Table::new(0).insert(()), None);
    }
}
