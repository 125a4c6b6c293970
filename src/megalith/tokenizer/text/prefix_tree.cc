// A trie in one array: all nodes in breadth-first order, so the children of a node are a range, sorted by label.
// Compared with pointers or maps per node it takes 12 bytes per node and stays in cache while a text walks through it.
#include "megalith/tokenizer/text/prefix_tree_internal.h"

#include <algorithm>

namespace megalith::tokenizer {

PrefixTree::PrefixTree(std::vector<Key> keys) {
  std::erase_if(keys, [](const Key& key) { return key.text.empty(); });
  std::ranges::stable_sort(keys, {}, &Key::text);

  // Breadth first, so that the children of a node are adjacent. Each entry is a node and the range of sorted keys below
  // it, which share their first `depth` bytes.
  struct Todo {
    uint32_t node;
    size_t first, last, depth;
  };
  nodes_.emplace_back();
  std::vector<Todo> todo{{0, 0, keys.size(), 0}};
  for (size_t done = 0; done < todo.size(); ++done) {
    auto [node, first, last, depth] = todo[done];
    // A key that ends here. Of equal keys the last one wins, because the sort is stable.
    while (first < last && keys[first].text.size() == depth) nodes_[node].id = keys[first++].id;
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    while (first < last) {
      const char label = keys[first].text[depth];
      size_t end = first;
      while (end < last && keys[end].text[depth] == label) ++end;
      todo.push_back({static_cast<uint32_t>(nodes_.size()), first, end, depth + 1});
      nodes_.push_back({.label = static_cast<unsigned char>(label)});
      ++nodes_[node].children;
      first = end;
    }
  }
}

// Children are sorted by label; 0 (the root) means none.
uint32_t PrefixTree::child(uint32_t node, unsigned char label) const {
  const auto begin = nodes_.begin() + nodes_[node].first_child;
  const auto end = begin + nodes_[node].children;
  const auto found = std::ranges::lower_bound(begin, end, label, {}, &Node::label);
  return found != end && found->label == label ? static_cast<uint32_t>(found - nodes_.begin()) : 0;
}

}  // namespace megalith::tokenizer
