#include "filter.h"

#include <stdio.h>
#include <string.h>

/* One character of UTF-8 from `text`, which is well-formed or cut at its end; returns how many bytes it took. */
static size_t character(const uint8_t *text, size_t left, uint32_t *found) {
  size_t size = text[0] < 0x80 ? 1 : text[0] < 0xe0 ? 2 : text[0] < 0xf0 ? 3 : 4;
  *found = size == 1 ? text[0] : text[0] & (0xffu >> (size + 1));
  if (size > left) size = left;
  for (size_t i = 1; i < size; i++) *found = *found << 6 | (text[i] & 0x3f);
  return size;
}

size_t json_error(const char *message, size_t length, char *out, size_t room) {
  static const char begin[] = "{\"error\":\"", end[] = "\"}";
  size_t at = sizeof begin - 1;
  memcpy(out, begin, at);
  for (size_t i = 0; i < length && at + 12 + sizeof end < room;) {
    uint32_t c;
    i += character((const uint8_t *)message + i, length - i, &c);
    if (c && c < 0x80 && strchr("\"\\\n\r\t\b\f", (int)c)) {
      out[at++] = '\\';
      out[at++] = c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : c == '\b' ? 'b' : c == '\f' ? 'f' : (char)c;
    } else if (c >= 0x20 && c < 0x7f) {
      out[at++] = (char)c;
    } else if (c < 0x10000) {
      at += (size_t)snprintf(out + at, room - at, "\\u%04x", (unsigned)c);
    } else {
      c = (c - 0x10000) & 0xfffff;
      at += (size_t)snprintf(out + at, room - at, "\\u%04x\\u%04x", 0xd800u + (unsigned)(c >> 10),
                             0xdc00u + (unsigned)(c & 0x3ff));
    }
  }
  memcpy(out + at, end, sizeof end - 1);
  return at + sizeof end - 1;
}
