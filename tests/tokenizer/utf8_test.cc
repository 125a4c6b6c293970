#include "megalith/tokenizer/text/utf8.h"

#include <gtest/gtest.h>

#include "megalith/tokenizer/text/byte_alphabet_internal.h"

namespace megalith::tokenizer {
namespace {

TEST(Utf8, ValidTextStaysAsItIs) {
  const std::string text("a\0é漢😀z\xF4\x8F\xBF\xBF", 17);
  EXPECT_EQ(first_invalid_utf8(text), std::nullopt);
  EXPECT_EQ(replace_invalid_utf8(text), text);
}

TEST(Utf8, EachMaximalInvalidPartBecomesOneSign) {
  const std::string sign(kReplacementCharacter);
  EXPECT_EQ(replace_invalid_utf8("a\xFFz"), "a" + sign + "z");
  EXPECT_EQ(replace_invalid_utf8("\xE6\xBCz"), sign + "z");  // a start of three bytes, cut off
  EXPECT_EQ(replace_invalid_utf8("\xE6\xBC"), sign);         // the same at the end
  EXPECT_EQ(replace_invalid_utf8("\xF0\x9F\x98"), sign);
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF"), sign + sign);             // overlong
  EXPECT_EQ(replace_invalid_utf8("\xE0\x80\x80"), sign + sign + sign);  // overlong
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80"), sign + sign + sign);  // a surrogate
  EXPECT_EQ(replace_invalid_utf8("\xF5\x80"), sign + sign);             // beyond U+10FFFF
  EXPECT_EQ(replace_invalid_utf8("\xF4\x90\x80\x80"), sign + sign + sign + sign);
  EXPECT_EQ(replace_invalid_utf8("\x80\x80"), sign + sign);  // nothing that they continue
}

TEST(Utf8, TheFirstInvalidByteIsFoundAlsoAfterLongAscii) {
  const std::string ascii(100, 'x');
  EXPECT_EQ(first_invalid_utf8(ascii + "\xC3"), 100u);
  EXPECT_EQ(first_invalid_utf8(ascii + "é" + ascii + "\xFF"), 202u);
}

TEST(Utf8, AnUnfinishedEndIsHeldBack) {
  EXPECT_EQ(finished_utf8_bytes("ab"), 2u);
  EXPECT_EQ(finished_utf8_bytes("ab\xE6"), 2u);
  EXPECT_EQ(finished_utf8_bytes("ab\xE6\xBC"), 2u);
  EXPECT_EQ(finished_utf8_bytes("ab\xE6\xBC\xA2"), 5u);
  EXPECT_EQ(finished_utf8_bytes("ab\xF0\x9F\x98"), 2u);
  EXPECT_EQ(finished_utf8_bytes("\x80\x80\x80"), 3u);  // invalid for good
  EXPECT_EQ(finished_utf8_bytes("\xE0\x80"), 2u);
  EXPECT_EQ(finished_utf8_bytes(""), 0u);
}

TEST(Utf8, CodePointsThereAndBack) {
  for (const char32_t code : {U'a', U'\x7F', U'\x80', U'\x7FF', U'\x800', U'\xFFFF', U'\x10000', U'\x10FFFF'}) {
    std::string text = "<";
    append_utf8(text, code);
    EXPECT_EQ(code_point_at(text, 1), code);
    EXPECT_EQ(utf8_length(text[1]), text.size() - 1);
    EXPECT_EQ(previous_character(text, text.size()), 1u);
  }
}

TEST(ByteAlphabet, EveryByteHasACharacterOfItsOwn) {
  std::string bytes, characters;
  for (int byte = 0; byte < 256; ++byte) bytes += static_cast<char>(byte);
  append_byte_characters(characters, bytes);
  EXPECT_EQ(bytes_of_characters(characters), bytes);
  EXPECT_EQ(character_of_byte(' '), "Ġ");
  EXPECT_EQ(character_of_byte('\n'), "Ċ");
  EXPECT_EQ(bytes_of_characters("a b"), std::nullopt);
  EXPECT_EQ(bytes_of_characters("漢"), std::nullopt);
}

}  // namespace
}  // namespace megalith::tokenizer
