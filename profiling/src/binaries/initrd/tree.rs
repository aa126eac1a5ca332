//! The files that an initial RAM disk unpacks to.

use std::collections::HashMap;
use std::ops::Range;

/// Maximum number of files, folders and links.
const MAX_NODES: usize = 1 << 20;
/// Maximum number of links on the way to a file (`MAXSYMLINKS`).
const MAX_LINKS: usize = 40;
/// Maximum number of names that are looked up while the tree is made. In a hostile archive, each name leads through many links, each of which
/// has many names.
const MAX_LOOKUPS: usize = 1 << 24;

/// A file, a folder or a link, by its place in [`FileTree::nodes`].
pub type NodeId = usize;

/// The folder that all others are in.
const ROOT: NodeId = 0;

/// The object with a name.
#[derive(Debug)]
pub enum Node {
    /// A folder.
    Folder(HashMap<Box<str>, NodeId>),
    /// A file, with the range of its contents in the archive.
    File(Range<usize>),
    /// A symbolic link, with its target.
    Link(Box<str>),
}

/// Files by their paths. Links are followed as the kernel follows them.
#[derive(Debug)]
pub struct FileTree {
    nodes: Vec<Node>,
    lookups_left: usize,
}

/// The nodes of a path, as far as they exist.
struct Walk<'a> {
    /// From the root to the last node that exists.
    nodes: Vec<NodeId>,
    /// The last name that was looked up.
    name: &'a str,
    /// The names behind the last node.
    missing: Vec<&'a str>,
    lookups: usize,
}

/// A folder, and a name that is in it or may be added to it.
struct FolderEntry {
    folder: NodeId,
    name: Box<str>,
}

impl FileTree {
    /// An empty tree.
    pub fn new() -> Self {
        Self {
            nodes: vec![Node::Folder(HashMap::new())],
            lookups_left: MAX_LOOKUPS,
        }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Whether nothing can be added any more.
    pub fn is_full(&self) -> bool {
        self.nodes.len() >= MAX_NODES || self.lookups_left == 0
    }

    /// The number of names that were looked up while the tree was made: all work that doesn't depend on the archive's length.
    #[cfg(test)]
    pub fn lookups(&self) -> usize {
        MAX_LOOKUPS - self.lookups_left
    }

    /// The range of the contents of the file at `path`.
    pub fn file(&self, path: &str) -> Option<Range<usize>> {
        let walk = self.walk(path, true)?;
        match self.nodes.get(*walk.nodes.last()?)? {
            Node::File(contents) if walk.missing.is_empty() => Some(contents.clone()),
            _ => None,
        }
    }

    /// Puts a node at `path`, in place of a file or a link there. Missing folders on the way are made. `None` if nothing can be there.
    pub fn add(&mut self, path: &str, node: Node) -> Option<NodeId> {
        let entry = self.entry(path)?;
        let id = self.new_node(node)?;
        self.put(entry, id);
        Some(id)
    }

    /// Gives the node another name.
    pub fn add_name(&mut self, path: &str, id: NodeId) {
        if let Some(entry) = self.entry(path) {
            self.put(entry, id);
        }
    }

    /// Gives a file its contents.
    pub fn set_contents(&mut self, id: NodeId, contents: Range<usize>) {
        if let Some(Node::File(old)) = self.nodes.get_mut(id) {
            *old = contents;
        }
    }

    fn new_node(&mut self, node: Node) -> Option<NodeId> {
        let id = self.nodes.len();
        (id < MAX_NODES).then(|| self.nodes.push(node))?;
        Some(id)
    }

    fn put(&mut self, entry: FolderEntry, id: NodeId) {
        if let Some(Node::Folder(names)) = self.nodes.get_mut(entry.folder) {
            names.insert(entry.name, id);
        }
    }

    /// The folder and the name of a new node at `path`.
    fn entry(&mut self, path: &str) -> Option<FolderEntry> {
        let walk = self.walk(path, false)?;
        let lookups = walk.lookups;
        let mut missing: Vec<Box<str>> = walk.missing.into_iter().map(Box::from).collect();
        let (mut folder, name) = match (walk.nodes.as_slice(), missing.pop()) {
            ([.., last], Some(name)) => (*last, name),
            ([.., folder, last], None) if !self.is_folder(*last) => (*folder, walk.name.into()),
            _ => return None,
        };
        self.lookups_left = self.lookups_left.saturating_sub(lookups);
        if self.is_full() || !self.is_folder(folder) {
            return None;
        }
        for name in missing {
            let id = self.new_node(Node::Folder(HashMap::new()))?;
            self.put(FolderEntry { folder, name }, id);
            folder = id;
        }
        Some(FolderEntry { folder, name })
    }

    fn is_folder(&self, id: NodeId) -> bool {
        matches!(self.nodes.get(id), Some(Node::Folder(_)))
    }

    /// Follows `path` from the root. If the path's last node is a link, follows that only with `last`. `None` after too many links.
    fn walk<'a>(&'a self, path: &'a str, last: bool) -> Option<Walk<'a>> {
        let mut ahead: Vec<&str> = names(path).rev().collect();
        let mut walk = Walk {
            nodes: vec![ROOT],
            name: "",
            missing: Vec::new(),
            lookups: 0,
        };
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            walk.lookups += 1;
            if name == ".." {
                if walk.missing.pop().is_none() && walk.nodes.len() > 1 {
                    walk.nodes.pop();
                }
                continue;
            }
            let Some(id) = self.child(&walk, name) else {
                walk.missing.push(name);
                continue;
            };
            match self.nodes.get(id) {
                Some(Node::Link(target)) if last || !ahead.is_empty() => {
                    links += 1;
                    (links <= MAX_LINKS).then_some(())?;
                    if target.starts_with('/') {
                        walk.nodes.truncate(1);
                    }
                    ahead.extend(names(target).rev());
                }
                _ => {
                    walk.nodes.push(id);
                    walk.name = name;
                }
            }
        }
        Some(walk)
    }

    fn child(&self, walk: &Walk<'_>, name: &str) -> Option<NodeId> {
        match self.nodes.get(*walk.nodes.last()?)? {
            Node::Folder(names) if walk.missing.is_empty() => names.get(name).copied(),
            _ => None,
        }
    }
}

fn names(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/')
        .filter(|name| !name.is_empty() && *name != ".")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(nodes: impl IntoIterator<Item = (String, Node)>) -> FileTree {
        let mut tree = FileTree::new();
        for (path, node) in nodes {
            tree.add(&path, node);
        }
        tree
    }

    #[test]
    fn a_file_replaces_another_one_but_not_a_folder() {
        let file = |path: &str, at| (path.to_owned(), Node::File(at..at + 1));
        let files = [("a/b", 1), ("a/b", 2), ("a", 3), ("a/b/c", 4)];
        let tree = with(files.map(|(path, at)| file(path, at)));
        assert_eq!(tree.file("a/b"), Some(2..3));
        assert_eq!(tree.file("a"), None);
        assert_eq!(tree.file("a/b/c"), None);
        assert_eq!(tree.file("/x/../a/./b"), Some(2..3));
    }

    #[test]
    fn the_root_is_never_replaced() {
        for path in ["", "/", ".", "..", "a/.."] {
            let mut tree = FileTree::new();
            assert_eq!(tree.add(path, Node::File(0..1)), None, "{path}");
        }
    }

    /// Each file is behind 40 links of 2,000 names each.
    #[test]
    fn lookups_are_bounded() {
        let long = "a/../".repeat(1000);
        let link = |number: usize| {
            let target = format!("{long}l{}", number + 1);
            (format!("l{number}"), Node::Link(target.into()))
        };
        let links = (0..MAX_LINKS).map(link);
        let files = (0..1000).map(|file| (format!("l1/{file}"), Node::File(0..1)));
        let mut tree = with(links.chain(files));
        assert!(tree.is_full());
        assert!(tree.nodes.len() < 500);
        assert_eq!(tree.add("b", Node::File(0..1)), None);
    }

    #[test]
    fn nodes_are_bounded() {
        let deep = "a/".repeat(2000);
        let files = (0..600).map(|file| (format!("{file}/{deep}"), Node::File(0..1)));
        let tree = with(files);
        assert!(tree.is_full());
        assert_eq!(tree.nodes.len(), MAX_NODES);
    }
}
