//! Images: root file systems that boxes start from.
