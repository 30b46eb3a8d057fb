#include "text.h"

#include <stdio.h>
#include <string.h>

enum { REPLACEMENT = 0xFFFD };

void balancer_text_clear(struct balancer_text *text) {
  text->bytes = text->characters = 0;
  text->decoder.need = 0;
  text->broken = false;
}

static void keep(struct balancer_text *text, const void *data, size_t length) {
  if (text->bytes < sizeof text->kept) {
    size_t room = sizeof text->kept - text->bytes;
    memcpy(text->kept + text->bytes, data, length < room ? length : room);
  }
  text->bytes = length < UINT32_MAX - text->bytes ? text->bytes + (uint32_t)length : UINT32_MAX;
}

/* How many bytes are ASCII before the first that is not. */
static size_t plain(const uint8_t *data, size_t length) {
  size_t count = 0;
  for (uint64_t word; length - count >= sizeof word; count += sizeof word) {
    memcpy(&word, data + count, sizeof word);
    if (word & UINT64_C(0x8080808080808080)) break;
  }
  while (count < length && data[count] < 0x80) count++;
  return count;
}

/* Begin a character; false: no character begins so. RFC 3629. */
static bool begin(struct balancer_utf8 *decoder, uint8_t byte) {
  decoder->low = 0x80;
  decoder->high = 0xBF;
  if (byte < 0x80) {
    decoder->need = 0;
    decoder->point = byte;
  } else if (byte >= 0xC2 && byte <= 0xDF) {
    decoder->need = 1;
    decoder->point = byte & 0x1F;
  } else if (byte >= 0xE0 && byte <= 0xEF) {
    decoder->need = 2;
    decoder->point = byte & 0x0F;
    if (byte == 0xE0) decoder->low = 0xA0;
    if (byte == 0xED) decoder->high = 0x9F;
  } else if (byte >= 0xF0 && byte <= 0xF4) {
    decoder->need = 3;
    decoder->point = byte & 0x07;
    if (byte == 0xF0) decoder->low = 0x90;
    if (byte == 0xF4) decoder->high = 0x8F;
  } else {
    decoder->need = 0;
    return false;
  }
  return true;
}

/* Go on with a character; false: it does not go on so. */
static bool next(struct balancer_utf8 *decoder, uint8_t byte) {
  if (byte < decoder->low || byte > decoder->high) {
    decoder->need = 0;
    return false;
  }
  decoder->point = decoder->point << 6 | (byte & 0x3F);
  decoder->low = 0x80;
  decoder->high = 0xBF;
  decoder->need--;
  return true;
}

void balancer_text_add(struct balancer_text *text, const void *data, size_t length) {
  const uint8_t *bytes = data;
  for (size_t i = 0; i < length;) {
    if (text->decoder.need) {
      if (!next(&text->decoder, bytes[i++])) text->broken = true;
    } else if (bytes[i] >= 0x80) {
      text->characters++;
      if (!begin(&text->decoder, bytes[i++])) text->broken = true;
    } else {
      size_t run = plain(bytes + i, length - i);
      text->characters += (uint32_t)run;
      i += run;
    }
  }
  keep(text, data, length);
}

void balancer_text_add_point(struct balancer_text *text, uint32_t point) {
  uint8_t bytes[4];
  size_t length = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
  static const uint8_t lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
  for (size_t i = length; i-- > 1; point >>= 6) bytes[i] = (uint8_t)(0x80 | (point & 0x3F));
  bytes[0] = (uint8_t)(lead[length] | point);
  if (text->decoder.need) text->broken = true;
  text->decoder.need = 0;
  text->characters++;
  keep(text, bytes, length);
}

void balancer_text_add_latin1(struct balancer_text *text, const char *data, size_t length) {
  const uint8_t *bytes = (const uint8_t *)data;
  for (size_t i = 0; i < length;) {
    size_t run = plain(bytes + i, length - i);
    if (run) keep(text, bytes + i, run);
    text->characters += (uint32_t)run;
    i += run;
    if (i < length) balancer_text_add_point(text, bytes[i++]);
  }
}

static bool printable(uint32_t point) {
  static const uint32_t ranges[][2] = {BALANCER_UNPRINTABLE};
  size_t low = 0, high = sizeof ranges / sizeof *ranges;
  if (point >= ' ' && point < 0x7F) return true;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (ranges[middle][1] < point) low = middle + 1;
    else high = middle;
  }
  return low == sizeof ranges / sizeof *ranges || point < ranges[low][0];
}

static bool add_printable(struct balancer_text *text, uint32_t point) {
  balancer_text_add_point(text, point);
  return printable(point);
}

static int hex(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  return digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

/* How many bytes of a path stand for themselves and are printable. */
static size_t literal(const uint8_t *data, size_t length) {
  size_t count = 0;
  while (count < length && data[count] >= ' ' && data[count] < 0x7F && data[count] != '%') count++;
  return count;
}

bool balancer_text_add_path(struct balancer_text *text, const char *data, size_t length) {
  struct balancer_utf8 decoder = {0};
  bool good = true;
  for (size_t i = 0; i < length; i++) {
    size_t run = decoder.need ? 0 : literal((const uint8_t *)data + i, length - i);
    keep(text, data + i, run);
    text->characters += (uint32_t)run;
    i += run;
    if (i == length) break;
    uint8_t byte = (uint8_t)data[i];
    /* A byte that came as such is a character of Latin-1. One that was encoded is one of UTF-8. */
    bool raw = byte >= 0x80;
    if (byte == '%' && length - i > 2 && hex(data[i + 1]) >= 0 && hex(data[i + 2]) >= 0) {
      byte = (uint8_t)(hex(data[i + 1]) << 4 | hex(data[i + 2]));
      i += 2;
      if (byte == '/') good = false;
    }
    if (decoder.need) {
      if (!raw && next(&decoder, byte)) {
        if (!decoder.need) good = add_printable(text, decoder.point) && good;
        continue;
      }
      decoder.need = 0;
      balancer_text_add_point(text, REPLACEMENT);
    }
    if (raw) good = add_printable(text, byte) && good;
    else if (!begin(&decoder, byte)) balancer_text_add_point(text, REPLACEMENT);
    else if (!decoder.need) good = add_printable(text, byte) && good;
  }
  if (decoder.need) balancer_text_add_point(text, REPLACEMENT);
  return good;
}

bool balancer_text_valid(const struct balancer_text *text) { return !text->broken && !text->decoder.need; }

bool balancer_text_is(const struct balancer_text *text, const char *other) {
  size_t length = strlen(other);
  return text->bytes == length && length <= sizeof text->kept && !memcmp(text->kept, other, length);
}

void balancer_text_copy(struct balancer_text *to, const struct balancer_text *from) {
  size_t length = from->bytes < sizeof from->kept ? from->bytes : sizeof from->kept;
  to->bytes = from->bytes;
  to->characters = from->characters;
  to->decoder = from->decoder;
  to->broken = from->broken;
  memcpy(to->kept, from->kept, length);
}

/* The character at `*at`, of what add or add_point has written; moves on. */
static uint32_t point_at(const struct balancer_text *text, size_t *at, size_t end) {
  uint8_t first = (uint8_t)text->kept[(*at)++];
  size_t more = first < 0xC0 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
  uint32_t point = more ? first & (0x3FU >> more) : first;
  for (; more && *at < end; more--) point = point << 6 | ((uint8_t)text->kept[(*at)++] & 0x3F);
  return point;
}

void balancer_text_shown(const struct balancer_text *text, char shown[BALANCER_SHOWN_BYTES]) {
  size_t end = text->bytes < sizeof text->kept ? text->bytes : sizeof text->kept, used = 0;
  uint32_t points[BALANCER_SHOWN_CHARACTERS], count = 0;
  bool single = false, twofold = false;
  for (size_t at = 0; at < end && count < BALANCER_SHOWN_CHARACTERS; count++) {
    points[count] = point_at(text, &at, end);
    single |= points[count] == '\'';
    twofold |= points[count] == '"';
  }
  const char quote = single && !twofold ? '"' : '\'';
  shown[used++] = quote;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t point = points[i];
    const char *escape = point == '\t' ? "\\t" : point == '\n' ? "\\n" : point == '\r' ? "\\r" : "";
    int most = (int)(BALANCER_SHOWN_BYTES - used);
    int wrote;
    if (*escape) wrote = snprintf(shown + used, (size_t)most, "%s", escape);
    else if (point == '\\' || point == (uint8_t)quote) wrote = snprintf(shown + used, (size_t)most, "\\%c", (int)point);
    else if (point >= ' ' && point < 0x7F) wrote = snprintf(shown + used, (size_t)most, "%c", (int)point);
    else if (point < 0x100) wrote = snprintf(shown + used, (size_t)most, "\\x%02x", (unsigned)point);
    else if (point < 0x10000) wrote = snprintf(shown + used, (size_t)most, "\\u%04x", (unsigned)point);
    else wrote = snprintf(shown + used, (size_t)most, "\\U%08x", (unsigned)point);
    used += (size_t)wrote;
  }
  shown[used++] = quote;
  shown[used] = 0;
  if (text->characters > BALANCER_SHOWN_CHARACTERS)
    snprintf(shown + used, BALANCER_SHOWN_BYTES - used, "... (%u characters)", (unsigned)text->characters);
}
