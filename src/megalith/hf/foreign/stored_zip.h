// StoredZip: the members of a zip archive that are stored without compression, as torch.save writes them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace megalith::hf {

// Finds the members of an archive in memory; copies none of their bytes. Constant after construction.
class StoredZip {
 public:
  // `bytes`, which outlive the object, are the archive and nothing else. Throws DataError that begins with `name` for
  // anything else than an archive of stored members that lie inside it.
  StoredZip(std::string_view bytes, const std::string& name);

  // The bytes of each member by its name, without the folder that all of them are in: "data.pkl", "data/0".
  const std::map<std::string, std::string_view, std::less<>>& members() const { return members_; }
  // Returns the bytes of a member; throws DataError when there is none of that name.
  std::string_view content(std::string_view member) const;

 private:
  std::string name_;
  std::map<std::string, std::string_view, std::less<>> members_;
};

// Returns whether bytes begin as an archive does.
bool is_zip(std::string_view bytes);

}  // namespace megalith::hf
