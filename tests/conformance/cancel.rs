crate::case::cases![];
