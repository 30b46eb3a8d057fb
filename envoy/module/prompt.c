/* What a prompt begins with, hashed as its bytes arrive: balancer/extproc/prompts.py has the same, and says why. */
#include "request.h"

#include <string.h>

/* As `next_checkpoint` of balancer/kernel/estimators/prefixes.py. */
static uint32_t next_checkpoint(uint32_t blocks) {
  uint32_t step = 1;
  if (blocks < 4) return blocks + 1;
  while (step * 8 <= blocks) step *= 2;
  return blocks + step;
}

void balancer_prompt_start(struct balancer_prompt *prompt) {
  balancer_hash_start(&prompt->hash);
  balancer_hash_start(&prompt->salt);
  balancer_hash_start(&prompt->tools);
  prompt->bytes = 0;
  prompt->blocks = prompt->rest_bytes = prompt->count = 0;
  prompt->streams = prompt->is_text = prompt->named = false;
  prompt->max_tokens = 0;
}

static void note(struct balancer_prompt *prompt) {
  struct balancer_checkpoint *checkpoint = &prompt->checkpoints[prompt->count++];
  checkpoint->hash = balancer_hash_of(&prompt->hash);
  checkpoint->bytes = (uint64_t)prompt->blocks * BALANCER_BLOCK_BYTES;
}

static void add_blocks(struct balancer_prompt *prompt, const uint8_t *data, uint32_t blocks) {
  while (blocks && prompt->count < BALANCER_MOST_CHECKPOINTS) {
    uint64_t before = prompt->count ? prompt->checkpoints[prompt->count - 1].bytes / BALANCER_BLOCK_BYTES : 0;
    uint32_t wanted = next_checkpoint((uint32_t)before) - prompt->blocks, taken = blocks < wanted ? blocks : wanted;
    balancer_hash_add(&prompt->hash, data, (size_t)taken * BALANCER_BLOCK_BYTES);
    prompt->blocks += taken;
    data += (size_t)taken * BALANCER_BLOCK_BYTES;
    blocks -= taken;
    if (taken == wanted) note(prompt);
  }
}

void balancer_prompt_add(struct balancer_prompt *prompt, const uint8_t *data, size_t length) {
  if (!prompt->bytes && length) prompt->is_text = *data == '"';
  prompt->bytes += length;
  while (length) {
    if (!prompt->rest_bytes && length >= BALANCER_BLOCK_BYTES) {
      uint32_t blocks = (uint32_t)(length / BALANCER_BLOCK_BYTES);
      add_blocks(prompt, data, blocks);
      data += (size_t)blocks * BALANCER_BLOCK_BYTES;
      length -= (size_t)blocks * BALANCER_BLOCK_BYTES;
      continue;
    }
    size_t room = BALANCER_BLOCK_BYTES - prompt->rest_bytes, taken = length < room ? length : room;
    memcpy(prompt->rest + prompt->rest_bytes, data, taken);
    prompt->rest_bytes += (uint32_t)taken;
    data += taken;
    length -= taken;
    if (prompt->rest_bytes < BALANCER_BLOCK_BYTES) continue;
    prompt->rest_bytes = 0;
    add_blocks(prompt, prompt->rest, 1);
  }
}

void balancer_prompt_end(struct balancer_prompt *prompt, struct text model, struct text tenant) {
  struct balancer_hash hash;
  uint64_t further[2] = {balancer_hash_of(&prompt->salt), balancer_hash_of(&prompt->tools)};
  uint64_t last = prompt->count ? prompt->checkpoints[prompt->count - 1].bytes / BALANCER_BLOCK_BYTES : 0;
  if (prompt->blocks > last && prompt->count < BALANCER_MOST_CHECKPOINTS) note(prompt);
  balancer_hash_start(&hash);
  balancer_hash_add(&hash, model.ptr, model.length);
  balancer_hash_add(&hash, "", 1);
  balancer_hash_add(&hash, tenant.ptr, tenant.length);
  balancer_hash_add(&hash, "", 1);
  balancer_hash_add(&hash, further, sizeof further);
  uint64_t seed = balancer_hash_of(&hash);
  for (uint32_t i = 0; i < prompt->count; i++) {
    uint64_t mixed = balancer_mix(prompt->checkpoints[i].hash ^ seed);
    /* 0 stands for none. */
    prompt->checkpoints[i].hash = mixed ? mixed : 1;
  }
}
