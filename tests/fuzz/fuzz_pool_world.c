/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_pool_world.c: see fuzz_pool_world.h. */
#include "fuzz_pool_world.h"

#include <string.h>

static attn_message message;

/* ---- What the tables say ----------------------------------------------------------------------------------------- */

/* One row of a group, out of kernel blocks. */
static void take_row(const world *w, int32_t g, int32_t seq, snapshot *now) {
  const attn_pool_group *group = &w->groups[g];
  int32_t kernel[TOKENS];
  int32_t ratio = group->block_size / group->kernel_block;
  attn_status status = attn_pool_group_table(w->pool, g, 1, &seq, TOKENS, kernel, &now->lens[seq], &message);
  FUZZ_CHECK(status == ATTN_OK, "table: %s", message.text);
  int32_t columns = world_ceil_div(now->lens[seq], group->kernel_block);
  for (int32_t c = 0; !w->hostile && c < TOKENS; c++) {
    int32_t block = kernel[c] / ratio;
    int seen = c < columns && c / ratio >= w->seqs[seq].trimmed[g];
    FUZZ_CHECK(seen ? block > 0 && block < w->num_blocks && kernel[c] % ratio == c % ratio : kernel[c] == 0,
               "group %d, seq %d of %d tokens: entry %d is %d", (int)g, (int)seq, (int)now->lens[seq], (int)c,
               (int)kernel[c]);
    FUZZ_CHECK(!seen || c % ratio == 0 || now->table[g][seq][c / ratio] == block, "kernel blocks of several blocks");
    now->table[g][seq][c / ratio] = seen ? block : now->table[g][seq][c / ratio];
    now->holders[block] += seen && c % ratio == 0;
  }
}

void world_snapshot(const world *w, snapshot *now) {
  const attn_pool_info initial = ATTN_POOL_INFO_INIT;
  memset(now, 0, sizeof *now);
  now->info = initial;
  fuzz_message_reset(&message);
  FUZZ_CHECK(attn_pool_get_info(w->pool, &now->info, &message) == ATTN_OK, "info: %s", message.text);
  for (int32_t g = 0; g < w->num_groups; g++) {
    for (int32_t seq = 0; seq < w->max_seqs; seq++) {
      take_row(w, g, seq, now);
    }
  }
  for (int32_t block = 0; block < w->num_blocks; block++) {
    now->references[block] = attn_pool_references(w->pool, block);
  }
}

int32_t world_shared_tail(const world *w, const snapshot *now, int32_t g, int32_t seq) {
  int32_t len = now->lens[seq];
  int32_t block_size = w->groups[g].block_size;
  int32_t tail = len % block_size != 0 ? now->table[g][seq][len / block_size] : 0;
  return now->holders[tail] > 1 ? tail : 0;
}

int32_t world_behind(const world *w, int32_t g, int32_t position) {
  int32_t first = w->groups[g].window == 0 ? 0 : position - (w->groups[g].window - 1);
  return first > 0 ? first / w->groups[g].block_size : 0;
}

static void check_blocks(const world *w, const snapshot *now) {
  int32_t used = 0;
  int32_t shared = 0;
  for (int32_t block = 1; block < w->num_blocks; block++) {
    FUZZ_CHECK(now->references[block] == now->holders[block] + w->extra[block], "block %d has %d references, not %d",
               (int)block, (int)now->references[block], (int)(now->holders[block] + w->extra[block]));
    used += now->references[block] > 0;
    shared += now->holders[block] > 1;
  }
  FUZZ_CHECK(now->info.used == used && now->info.free == w->num_blocks - 1 - used && now->info.shared == shared &&
                 now->info.cached >= 0 && now->info.cached <= now->info.free,
             "used %d, free %d, shared %d, kept %d; %d and %d were found", (int)now->info.used, (int)now->info.free,
             (int)now->info.shared, (int)now->info.cached, (int)used, (int)shared);
}

static uint64_t row_of(uint64_t row, int32_t group) {
  return row * 0x9E3779B97F4A7C15u + (uint64_t)group;
}

/* Every row that a later query can see, and what the pool says of the group. */
static void check_group(const world *w, const snapshot *now, int32_t g) {
  attn_pool_group_info info = ATTN_POOL_GROUP_INFO_INIT;
  int32_t block_size = w->groups[g].block_size;
  int64_t entries = 0;
  for (int32_t i = 0; i < w->max_seqs; i++) {
    const sequence *s = &w->seqs[i];
    FUZZ_CHECK(now->lens[i] == s->len, "seq %d has %d tokens, not %d", (int)i, (int)now->lens[i], (int)s->len);
    entries += world_ceil_div(s->len, block_size) - s->trimmed[g];
    for (int32_t t = s->trimmed[g] * block_size; w->num_writes == 0 && w->copies.count == 0 && t < s->len; t++) {
      FUZZ_CHECK(w->cache[now->table[g][i][t / block_size]][t % block_size] == row_of(s->rows[t], g),
                 "group %d: seq %d finds a foreign row at token %d", (int)g, (int)i, (int)t);
    }
  }
  FUZZ_CHECK(attn_pool_get_group(w->pool, g, &info, NULL) == ATTN_OK && info.num_groups == w->num_groups &&
                 info.block_size == block_size && info.kernel_block == w->groups[g].kernel_block &&
                 info.window == w->groups[g].window && info.entries == entries && info.trimmed == w->trimmed[g],
             "group %d has %lld entries and gave back %lld, %lld and %lld were counted", (int)g,
             (long long)info.entries, (long long)info.trimmed, (long long)entries, (long long)w->trimmed[g]);
}

void world_check(world *w) {
  fuzz_message_reset(&message);
  attn_status status = attn_pool_check(w->pool, &message);
  FUZZ_CHECK(status == ATTN_OK || (w->hostile && status == ATTN_E_INTERNAL), "%s", message.text);
  world_snapshot(w, &w->now);
  if (w->hostile) {
    return;
  }
  check_blocks(w, &w->now);
  for (int32_t g = 0; g < w->num_groups; g++) {
    check_group(w, &w->now, g);
  }
}

/* ---- The step ---------------------------------------------------------------------------------------------------- */

void world_perform(world *w) {
  for (int32_t i = 0; i < w->copies.count; i++) {
    memcpy(w->cache[w->map[2 * i + 1]], w->cache[w->map[2 * i]], sizeof w->cache[0]);
  }
  for (int32_t i = 0; i < w->num_writes; i++) {
    int32_t block_size = w->groups[w->writes[i].group].block_size;
    w->cache[w->writes[i].slot / block_size][w->writes[i].slot % block_size] = w->writes[i].row;
  }
  w->copies.count = 0;
  w->num_writes = 0;
}

/* The row of a token is made of it and of the rows before it. */
static uint64_t next_row(const sequence *s, int32_t at, int32_t token) {
  uint64_t before = at > 0 ? s->rows[at - 1] : 0x9E3779B97F4A7C15u;
  uint64_t row = (before ^ (uint32_t)token) * 0xD6E8FEB86659FD93u;
  return (row ^ (row >> 29)) | 1;
}

void world_append(world *w, int32_t seq, int32_t count, const int32_t *tokens, const int64_t *slots) {
  sequence *s = &w->seqs[seq];
  int follows = tokens != NULL && s->known == s->len;
  for (int32_t i = 0; i < count; i++) {
    int32_t at = s->len + i;
    s->tokens[at] = follows ? tokens[i] : 0;
    s->rows[at] = follows ? next_row(s, at, tokens[i]) : (++w->stamp << 1);
    for (int32_t g = 0; g < w->num_groups; g++) {
      w->writes[w->num_writes++] = (row_write){slots[g * MOST + i], g, row_of(s->rows[at], g)};
    }
  }
  s->len += count;
  s->known += follows ? count : 0;
}

void world_start(world *w, int32_t seq, int32_t count, const int32_t *tokens) {
  sequence *s = &w->seqs[seq];
  memset(s, 0, sizeof *s);
  for (; s->len < count; s->len++) {
    s->tokens[s->len] = tokens[s->len];
    s->rows[s->len] = next_row(s, s->len, tokens[s->len]);
  }
  for (int32_t g = 0; g < w->num_groups; g++) {
    s->trimmed[g] = world_behind(w, g, count);
  }
  s->known = count;
  s->committed = w->has_window ? 0 : count;
}
