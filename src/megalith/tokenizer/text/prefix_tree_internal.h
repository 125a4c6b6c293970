// PrefixTree: finds all keys that a text starts with in one walk. With the keys {"a", "ab", "b"}, the text "abc" gives
// (1, id of "a") and (2, id of "ab").
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace megalith::tokenizer {

// A trie over bytes. Immutable.
class PrefixTree {
 public:
  // A text and the id to report for it, at least 0. The text is needed only while the tree is built.
  struct Key {
    std::string_view text;
    int32_t id;
  };
  // Empty keys are skipped; of equal ones the last counts.
  explicit PrefixTree(std::vector<Key> keys);

  // Calls found(bytes, id) for each key that `text` starts with, shortest first.
  template <typename Found>
  // Costs one binary search among the children per byte, and ends at the first byte that no key has.
  void walk(std::string_view text, const Found& found) const {
    // 0 is the root, which is never a child, so it also means "none".
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (nodes_[node].id >= 0) found(i + 1, nodes_[node].id);
    }
  }

 private:
  struct Node {
    uint32_t first_child = 0;  // children are adjacent, ordered by label
    // Up to 256, one per byte.
    uint16_t children = 0;
    unsigned char label = 0;
    int32_t id = -1;
  };

  // Returns the child with this label; 0 when there is none.
  uint32_t child(uint32_t node, unsigned char label) const;

  std::vector<Node> nodes_;  // 0 is the root
};

}  // namespace megalith::tokenizer
