// Copies are made from verified sources into a StagedFolder. Tensors stored in pieces are joined, since pieces are only
// a fast way to save: a copy is always of version 1, which other readers of safetensors can use. Files are mapped, and
// the pages of each tensor are released once it is written, so memory stays at one tensor.
#include "megalith/checkpoint/copy.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/chunk_sums.h"
#include "megalith/checkpoint/pieces.h"
#include "megalith/checkpoint/state_files.h"
#include "megalith/checkpoint/verify.h"
#include "megalith/hf/safetensors_file.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/weight_writer.h"
#include "megalith/io/file_io.h"
#include "megalith/io/mapped_file.h"
#include "megalith/io/staged_folder.h"

namespace megalith::checkpoint {

namespace {

namespace fs = std::filesystem;

// Whether the file holds tensors, or lists which file holds which tensor. Such files are written again, not copied.
bool is_of_tensors(const Manifest& manifest, const std::string& name) {
  return std::ranges::any_of(manifest.holds, [&](const std::string& stem) {
    return is_tensor_file(name, stem) || name == stem + ".safetensors.index.json" || name == piece_list_name(stem);
  });
}

// Writes tensors that are stored in pieces as whole tensors.
void join_pieces(const std::vector<hf::WeightSpec>& tensors, const StateFiles& files, const fs::path& to,
                 const hf::WeightWriterOptions& options) {
  hf::WeightWriter writer(to, tensors, options);
  writer.create_files();
  for (const hf::WeightSpec& spec : tensors) {
    const at::Tensor tensor = at::empty(spec.shape, hf::scalar_type(spec.dtype));
    files.read({spec.name, spec.shape, std::vector<int64_t>(spec.shape.size()), tensor, 0});
    writer.write(spec.name, tensor);
  }
  writer.sync();
  writer.write_index();
}

// Writes the tensors of one stem into new files.
void copy_tensors(const fs::path& source, const Manifest& manifest, const std::string& stem, const fs::path& to,
                  uint64_t max_shard_bytes) {
  if (const auto pieces = read_piece_list(source, stem))
    return join_pieces(*pieces, StateFiles(source, manifest, stem), to,
                       {.max_shard_bytes = max_shard_bytes, .stem = stem});
  std::vector<std::unique_ptr<hf::SafetensorsFile>> files;
  std::vector<hf::WeightSpec> specs;
  for (const FileRecord& record : manifest.files) {
    if (!is_tensor_file(record.name, stem)) continue;
    const auto& file = files.emplace_back(std::make_unique<hf::SafetensorsFile>(source / record.name));
    for (const hf::TensorInfo& info : file->tensors()) specs.push_back({info.name, info.dtype, info.shape});
  }
  hf::WeightWriter writer(to, specs, {.max_shard_bytes = max_shard_bytes, .stem = stem});
  writer.create_files();
  TaskProgress progress("copying " + stem, TaskProgress::Unit::kCount, std::ssize(specs), "tensors");
  for (const auto& file : files)
    for (const hf::TensorInfo& info : file->tensors()) {
      writer.write(info.name, file->tensor(info.name));
      progress.add(1);
      file->release(info.name);
    }
  writer.sync();
  writer.write_index();
}

// Last of all files, since its presence says that the folder is complete.
void write_manifest(const fs::path& folder, const Manifest& manifest) {
  io::write_text_file(folder / kManifestName, manifest.to_json());
}

}  // namespace

// Reads the file once, through a mapping.
FileRecord record_of(const fs::path& file) {
  const io::MappedFile mapped(file);
  ChunkSums sums(mapped.size());
  sums.add(0, mapped.data(), mapped.size());
  return {file.filename().string(), mapped.size(), sums.crc32c()};
}

std::vector<FileRecord> file_records(const fs::path& folder) {
  std::vector<FileRecord> records;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().filename() != kManifestName) records.push_back(record_of(entry.path()));
  }
  std::ranges::sort(records, std::less<>(), &FileRecord::name);
  return records;
}

// A model of another program gets checksums, and can then be verified and copied like a checkpoint.
void add_manifest(const fs::path& folder, int64_t step, const std::vector<std::string>& holds) {
  write_manifest(folder, {.step = step, .layout = {}, .holds = holds, .files = file_records(folder)});
}

// Checksums of the copy are computed from the new files, which also proves that they can be read.
Manifest copy_checkpoint(const fs::path& source, const fs::path& target, const CopyOptions& options) {
  Manifest manifest = read_manifest(source);
  const auto problems = problems_of_content(source, manifest);
  check<DataError>(problems.empty(), "{} is broken: {}", source.string(), list_in_words(problems, 8));
  std::error_code error;
  check<ConfigError>(!fs::equivalent(source, target, error), "the output is also the input, {}; choose another folder",
                     source.string());
  io::StagedFolder staged(target, "convert", {.overwrite = options.overwrite});
  for (const std::string& stem : manifest.holds)
    copy_tensors(source, manifest, stem, staged.path(), options.max_shard_bytes);
  for (const FileRecord& record : manifest.files) {
    if (is_of_tensors(manifest, record.name)) continue;
    fs::copy_file(source / record.name, staged.path() / record.name, error);
    check<DataError>(!error, "cannot copy {}: {}", (source / record.name).string(), error.message());
  }
  manifest.files = file_records(staged.path());
  manifest.version = 1;  // no pieces any more
  write_manifest(staged.path(), manifest);
  staged.commit();
  return manifest;
}

}  // namespace megalith::checkpoint
