/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Continuous batching of attn-lm over a pool that is too small: admission, prefix sharing, forks, preemption, resuming.
 * The model is one of this test's own, made so that a token depends on every bit of the attention over all tokens
 * before it: its logits are a hash of the outputs of two layers, the second layer's rows a hash of the first one's.
 * With batch-invariant attention a text is then that of the same request alone in a pool of its own, exactly, unless a
 * block, a position, a draw or a token is wrong anywhere. The pool's books are checked in every step.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "generate.h"
#include "harness.h"
#include "test_counts.h"

#define LAYERS 2
#define HEADS 2
#define HEAD 8
#define STRIDE ((HEADS + 2) * HEAD)
#define VOCABULARY 40
#define EOS 7
#define MOST_TOKENS 64
#define MOST_REQUESTS 24
#define MOST_LENGTH 160

static const model_params params = {.layers = LAYERS,
                                    .width = HEADS * HEAD,
                                    .hidden = 1,
                                    .heads = HEADS,
                                    .kv_heads = 1,
                                    .head_size = HEAD,
                                    .rotary = HEAD,
                                    .vocabulary = VOCABULARY,
                                    .context = MOST_LENGTH};

/* ---- The model --------------------------------------------------------------------------------------------------- */

struct model {
  float rows[MOST_TOKENS * STRIDE];
  float out[MOST_TOKENS * HEADS * HEAD];
  uint64_t state[MOST_TOKENS];
};

static model the_model;

static uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a + UINT64_C(0x9E3779B97F4A7C15) * (b + 1);
  x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
  return x ^ (x >> 31);
}

static float uniform(uint64_t bits) {
  return (float)((double)(bits >> 40) / 8388608.0 - 1.0);
}

attn_status model_run(model *m, const model_step *step, attn_message *message) {
  assert_true(step->tokens >= 1 && step->tokens <= MOST_TOKENS);
  assert_int_equal(lm_attention_check(step->attend_context, message), ATTN_OK);
  for (int64_t t = 0; t < step->tokens; t++) {
    assert_true(step->positions[t] >= 0 && step->positions[t] < MOST_LENGTH);
    m->state[t] = mix((uint64_t)step->ids[t], (uint64_t)step->positions[t]);
  }
  for (int32_t layer = 0; layer < LAYERS; layer++) {
    for (int64_t i = 0; i < step->tokens * STRIDE; i++) {
      m->rows[i] = uniform(mix(m->state[i / STRIDE], (uint64_t)(i % STRIDE)));
    }
    const model_rows rows = {
        layer, step->tokens, STRIDE, m->rows, m->rows + (size_t)HEADS * HEAD, m->rows + (size_t)(HEADS + 1) * HEAD,
        m->out};
    const attn_status status = step->attend(step->attend_context, &rows, message);
    if (status != ATTN_OK) {
      return status;
    }
    for (int64_t i = 0; i < step->tokens * HEADS * HEAD; i++) {
      uint32_t bits = 0;
      memcpy(&bits, &m->out[i], sizeof bits);
      uint64_t *state = &m->state[i / (HEADS * HEAD)];
      *state = mix(*state, bits);
    }
  }
  for (int64_t i = 0; i < step->outputs * VOCABULARY; i++) {
    step->logits[i] = 4 * uniform(mix(m->state[step->output_rows[i / VOCABULARY]], (uint64_t)(i % VOCABULARY)));
  }
  return ATTN_OK;
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

typedef struct scene {
  int32_t block_size;
  int32_t cache_blocks; /* 0: room for all */
  int32_t in_flight;
  int32_t max_tokens;
  int32_t threads;
  lm_formats formats; /* of the cache; where nothing is said float32 */
  bool scales;        /* its fp8 codes have static_scales */
  bool prefix_cache;
  sampler_options sampling;
  int32_t eos;
  size_t count;
  lm_request requests[MOST_REQUESTS];
  int32_t lengths[MOST_REQUESTS];
  lm_ids streamed[MOST_REQUESTS]; /* what on_token saw */
  lm_ids expected[MOST_REQUESTS];
  generate_stats stats;
} scene;

static scene the_scene;
static const float static_scales[LAYERS * 2] = {0.011f, 0.003f, 0.0021f, 0.017f};

static void stream(void *context, int32_t id) {
  attn_message message = {ATTN_OK, ""};
  assert_int_equal(lm_ids_push(context, id, &message), ATTN_OK);
}

static scene *new_scene(int32_t block_size, int32_t cache_blocks, int32_t in_flight, int32_t max_tokens) {
  scene *s = &the_scene;
  *s = (scene){.block_size = block_size,
               .cache_blocks = cache_blocks,
               .in_flight = in_flight,
               .max_tokens = max_tokens,
               .threads = 1,
               .formats = {{ATTN_FORMAT_FLOAT32, false}, {ATTN_FORMAT_FLOAT32, false}},
               .prefix_cache = true,
               .sampling = {.top_p = 1, .repetition_penalty = 1, .seed = 11},
               .eos = -1};
  return s;
}

/* `shared` ids that depend on `family` alone, then `own` ids that depend on the request too. */
static void add_request(scene *s, uint64_t family, int32_t shared, int32_t own, int32_t max_new) {
  attn_message message = {ATTN_OK, ""};
  lm_request *r = &s->requests[s->count];
  assert_true(s->count < MOST_REQUESTS && shared + own >= 1 && shared + own + max_new <= MOST_LENGTH);
  for (int32_t i = 0; i < shared + own; i++) {
    const uint64_t bits = mix(mix(family, (uint64_t)i), i < shared ? 0 : s->count + 1);
    assert_int_equal(lm_ids_push(&r->prompt, (int32_t)(bits % VOCABULARY), &message), ATTN_OK);
  }
  r->max_new = max_new;
  r->on_token = stream;
  r->context = &s->streamed[s->count];
  s->lengths[s->count] = shared + own + max_new - 1;
  s->count++;
}

static void free_scene(scene *s) {
  for (size_t i = 0; i < s->count; i++) {
    lm_ids_free(&s->requests[i].prompt);
    lm_ids_free(&s->requests[i].output);
    lm_ids_free(&s->streamed[i]);
    lm_ids_free(&s->expected[i]);
  }
  s->count = 0;
}

static attn_status make_attention(const scene *s, const int32_t *lengths, size_t count, lm_attention **out,
                                  attn_message *message) {
  static attn_executor executor;
  executor = harness_executor();
  lm_attention_options options = {.storage = {s->formats, s->scales ? static_scales : NULL, NULL},
                                  .threads = s->threads,
                                  .executor = s->threads > 1 ? &executor : NULL,
                                  .block_size = s->block_size,
                                  .batch_invariant = true,
                                  .max_seqs = s->in_flight,
                                  .max_tokens = s->max_tokens,
                                  .lengths = lengths,
                                  .length_count = count,
                                  .cache_blocks = s->cache_blocks,
                                  .cache_limit = UINT64_MAX,
                                  .prefix_cache = s->prefix_cache};
  for (size_t i = 0; i < count; i++) {
    options.max_length = lengths[i] > options.max_length ? lengths[i] : options.max_length;
  }
  attn_status status = lm_attention_create(&params, &options, out, message);
  return status == ATTN_OK ? lm_attention_allocate(*out, message) : status;
}

static void run_requests(const scene *s, lm_request *requests, const int32_t *lengths, size_t count,
                         generate_stats *stats) {
  attn_message message = {ATTN_OK, ""};
  lm_attention *attention = NULL;
  if (make_attention(s, lengths, count, &attention, &message) != ATTN_OK) {
    fail_msg("%s", message.text);
  }
  const generate_options options = {s->in_flight, s->max_tokens, s->eos, s->sampling};
  if (generate_run(&the_model, &params, attention, &options, requests, count, stats, &message) != ATTN_OK) {
    fail_msg("%s", message.text);
  }
  lm_attention_destroy(attention);
}

/* Each request alone, its prompt in one step, in a pool that shares nothing. */
static void expect_alone(scene *s) {
  scene alone = *s;
  alone.cache_blocks = 0;
  alone.in_flight = 1;
  alone.threads = 1;
  alone.prefix_cache = false;
  alone.max_tokens = MOST_TOKENS;
  for (size_t i = 0; i < s->count; i++) {
    generate_stats stats;
    lm_request request = s->requests[i];
    request.stream = sampler_stream_for(s->sampling.seed, i);
    request.on_token = NULL;
    run_requests(&alone, &request, &s->lengths[i], 1, &stats);
    s->expected[i] = request.output;
  }
}

static void expect_ids(const char *what, size_t i, const lm_ids *found, const lm_ids *expected) {
  const size_t least = found->count < expected->count ? found->count : expected->count;
  for (size_t j = 0; j < least; j++) {
    if (found->data[j] != expected->data[j]) {
      fail_msg("request %zu: %s %zu is %d, expected %d", i, what, j, found->data[j], expected->data[j]);
    }
  }
  if (found->count != expected->count) {
    fail_msg("request %zu: %zu of %s, expected %zu", i, found->count, what, expected->count);
  }
}

/* Runs all, against each alone. */
static const generate_sharing *run_scene(scene *s) {
  expect_alone(s);
  for (size_t i = 0; i < s->count; i++) {
    s->requests[i].stream = sampler_stream_for(s->sampling.seed, i);
  }
  run_requests(s, s->requests, s->lengths, s->count, &s->stats);
  const generate_sharing *found = &s->stats.sharing;
  int64_t preemptions = 0;
  for (size_t i = 0; i < s->count; i++) {
    expect_ids("tokens", i, &s->requests[i].output, &s->expected[i]);
    expect_ids("tokens handed on", i, &s->streamed[i], &s->expected[i]);
    preemptions += s->requests[i].preemptions;
  }
  assert_true(found->preemptions == preemptions && found->resumes == preemptions);
  assert_int_equal(s->requests[0].preemptions, 0); /* the oldest never */
  assert_int_equal(found->blocks_in_use, 0);
  assert_true(s->cache_blocks == 0 || found->peak_blocks <= s->cache_blocks);
  assert_true(s->prefix_cache || (found->shared_blocks == 0 && found->peak_shared == 0 && found->resumed_tokens == 0 &&
                                  found->forks == 0 && found->copies == 0 && found->evictions == 0));
  return found;
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

/* A pool of exactly the longest request, from the one that fills it to the ones that wait. */
static void test_pool_of_the_longest(void **state) {
  (void)state;
  for (int32_t threads = 1; threads <= 2; threads++) {
    scene *s = new_scene(4, 8, 8, 16);
    s->threads = threads;
    add_request(s, 1, 0, 5, 6);
    add_request(s, 2, 0, 13, 20); /* 32 tokens: 8 blocks */
    add_request(s, 3, 0, 3, 12);
    add_request(s, 4, 0, 29, 4); /* likewise */
    add_request(s, 5, 0, 1, 31);
    const generate_sharing *found = run_scene(s);
    assert_int_equal(found->peak_blocks, 8);
    assert_true(found->preemptions > 0);
    free_scene(s);
  }
}

/* One block less, and the prompt is named before anything runs. */
static void test_never_fits(void **state) {
  (void)state;
  attn_message message = {ATTN_OK, ""};
  lm_attention *attention = NULL;
  scene *s = new_scene(4, 7, 8, 16);
  add_request(s, 1, 0, 5, 6);
  add_request(s, 2, 0, 13, 20);
  assert_int_equal(make_attention(s, s->lengths, s->count, &attention, &message), ATTN_E_CAPACITY);
  assert_null(attention);
  assert_string_equal(message.text, "prompt 2 may come to 32 tokens, 8 blocks of 4; the cache has 7 blocks "
                                    "(--cache-blocks)");
  free_scene(s);
}

/* With room for all, every request starts in the first step, without a prefix to wait for; nothing is preempted. */
static void test_room_for_all(void **state) {
  (void)state;
  scene *s = new_scene(4, 0, 8, MOST_TOKENS);
  for (uint64_t i = 0; i < 8; i++) {
    add_request(s, i, 0, 7, 2); /* two blocks from the start to the end */
  }
  const generate_sharing *found = run_scene(s);
  assert_int_equal(s->stats.steps, 2);
  assert_int_equal(s->stats.prefill_tokens, 56);
  assert_int_equal(s->stats.decode_tokens, 8);
  assert_int_equal(found->peak_blocks, 16);
  assert_int_equal(found->preemptions, 0);
  assert_int_equal(found->recomputed_tokens, 0);
  free_scene(s);
}

/* A prefix of less than a block is nothing to wait for. */
static void test_short_prefix(void **state) {
  (void)state;
  scene *s = new_scene(4, 0, 8, MOST_TOKENS);
  add_request(s, 1, 3, 4, 2);
  add_request(s, 1, 3, 4, 2);
  add_request(s, 2, 4, 0, 2); /* a whole block, but for the last token */
  add_request(s, 2, 4, 0, 2);
  (void)run_scene(s);
  assert_int_equal(s->stats.steps, 2);
  free_scene(s);
}

/* Two prompts of two blocks each that go on to four: the second starts only where both can take a third one. */
static void test_reserve(void **state) {
  (void)state;
  for (int32_t blocks = 5; blocks <= 6; blocks++) {
    scene *s = new_scene(4, blocks, 8, MOST_TOKENS);
    add_request(s, 1, 0, 7, 10);
    add_request(s, 2, 0, 7, 10);
    const generate_sharing *found = run_scene(s);
    assert_int_equal(found->preemptions, blocks - 5);
    assert_int_equal(found->peak_blocks, blocks == 5 ? 4 : 6);
    free_scene(s);
  }
}

/* A request waits for the prefix that another one is computing and takes it, whole blocks and never the last token. */
static void test_prefix(void **state) {
  (void)state;
  scene *s = new_scene(4, 0, 8, MOST_TOKENS);
  add_request(s, 1, 14, 5, 1);
  add_request(s, 1, 14, 2, 1);
  add_request(s, 1, 13, 0, 1); /* all of it is the prefix: 12 of 13 tokens */
  add_request(s, 1, 12, 0, 1); /* 8 of 12 tokens */
  const generate_sharing *found = run_scene(s);
  assert_int_equal(s->stats.steps, 2);
  assert_int_equal(found->shared_blocks, 3 + 3 + 2);
  assert_int_equal(found->shared_tokens, 12 + 12 + 8);
  assert_int_equal(s->stats.prefill_tokens, 19 + (16 + 13 + 12) - 32);
  assert_int_equal(found->peak_shared, 3);
  free_scene(s);
  s = new_scene(4, 0, 8, MOST_TOKENS);
  s->prefix_cache = false;
  add_request(s, 1, 14, 5, 1);
  add_request(s, 1, 14, 2, 1);
  (void)run_scene(s);
  assert_int_equal(s->stats.steps, 1);
  free_scene(s);
}

/* Blocks that decoding filled are found too: the second prompt is the first one's and what came of it. */
static void test_prefix_of_decoded(void **state) {
  (void)state;
  attn_message message = {ATTN_OK, ""};
  scene *s = new_scene(4, 0, 1, MOST_TOKENS);
  add_request(s, 1, 0, 5, 12);
  (void)run_scene(s);
  lm_ids text = {0};
  for (size_t i = 0; i < 5; i++) {
    assert_int_equal(lm_ids_push(&text, s->requests[0].prompt.data[i], &message), ATTN_OK);
  }
  for (size_t i = 0; i < s->requests[0].output.count; i++) {
    assert_int_equal(lm_ids_push(&text, s->requests[0].output.data[i], &message), ATTN_OK);
  }
  free_scene(s);
  s = new_scene(4, 0, 1, MOST_TOKENS);
  add_request(s, 1, 0, 5, 12);
  s->requests[1].prompt = text;
  s->requests[1].max_new = 3;
  s->lengths[1] = 19;
  s->count = 2;
  s->requests[1].on_token = stream;
  s->requests[1].context = &s->streamed[1];
  const generate_sharing *found = run_scene(s);
  assert_int_equal(found->shared_tokens, 16);
  free_scene(s);
}

/* Equal prompts are fed once; each has its own draws. The block that all would write is copied. */
static void test_equal_prompts(void **state) {
  (void)state;
  for (int32_t blocks = 0; blocks <= 12; blocks += 12) {
    for (int32_t temperature = 0; temperature < 2; temperature++) {
      scene *s = new_scene(4, blocks, 12, MOST_TOKENS);
      s->sampling.temperature = temperature;
      for (int i = 0; i < 12; i++) {
        add_request(s, 1, 18, 0, 20);
      }
      const generate_sharing *found = run_scene(s);
      if (blocks == 0) {
        assert_int_equal(s->stats.prefill_tokens, 18);
        assert_int_equal(found->forks, 11);
        assert_int_equal(found->copies, 11);
        assert_int_equal(found->shared_tokens, 11 * 18);
      } else {
        assert_true(found->preemptions > 0 && found->shared_blocks > 0);
      }
      free_scene(s);
    }
  }
}

/* A preempted request finds its own blocks again: what was computed again is less than what it had. */
static void test_resume_finds_its_blocks(void **state) {
  (void)state;
  scene *s = new_scene(4, 10, 2, MOST_TOKENS);
  add_request(s, 1, 0, 8, 24);  /* 31 tokens: 8 blocks */
  add_request(s, 2, 0, 17, 16); /* 32 tokens: 8 blocks */
  const generate_sharing *found = run_scene(s);
  assert_int_equal(found->preemptions, 1);
  assert_true(found->resumed_tokens > 0 && found->recomputed_tokens > 0);
  assert_true(found->evictions > 0);
  free_scene(s);
}

/* Forks, copies, preemptions and resumes with every format of keys beside every other of values. */
static void test_formats(void **state) {
  (void)state;
  attn_message message = {ATTN_OK, ""};
  static const char *const names[] = {"float32",
                                      "bfloat16",
                                      "fp8_e4m3",
                                      "fp8_e5m2",
                                      "int8_per_token_head",
                                      "fp8_per_token_head+separate_scales",
                                      "int4_per_token_head",
                                      "int4_per_token_head+separate_scales"};
  enum { NAMES = sizeof names / sizeof names[0] };
  for (int i = 0; i < NAMES * NAMES; i += test_count(1, 3)) { /* by 3: each is still met on both sides */
    char name[128];
    (void)snprintf(name, sizeof name, "%s,%s", names[i / NAMES], names[i % NAMES]);
    scene *s = new_scene(4, 12, 8, 32);
    assert_int_equal(lm_formats_parse("", name, &s->formats, &message), ATTN_OK);
    s->sampling.temperature = 1;
    for (int j = 0; j < 3; j++) {
      add_request(s, 1, 18, 0, 20); /* equal prompts: one is fed, two fork from it, and each copies the last block */
    }
    add_request(s, 1, 12, 3, 12);
    add_request(s, 2, 0, 9, 24);
    const generate_sharing *found = run_scene(s);
    if (found->forks == 0 || found->copies == 0 || found->preemptions == 0 || found->shared_blocks == 0) {
      fail_msg("%s: %d forks, %d copies, %d preemptions, %d shared blocks", name, (int)found->forks, (int)found->copies,
               (int)found->preemptions, (int)found->shared_blocks);
    }
    free_scene(s);
  }
}

static uint64_t draw(uint64_t *seed, uint64_t below) {
  *seed = mix(*seed, 1);
  return *seed % below;
}

static lm_format draw_format(uint64_t *seed) {
  const attn_format format = (attn_format)(ATTN_FORMAT_FLOAT32 + (int)draw(seed, 8));
  return (lm_format){format, format >= ATTN_FORMAT_INT8_PER_TOKEN_HEAD && draw(seed, 2) == 0};
}

/* Few families of prompts, so that prefixes are shared; small pools; anything from one request at a time to all. */
static void fuzz_scene(uint64_t seed, int32_t threads, generate_sharing *sum) {
  static const int32_t block_sizes[] = {1, 2, 3, 4, 7, 8, 16};
  scene *s = new_scene(block_sizes[draw(&seed, 7)], 0, 1 + (int32_t)draw(&seed, 12), 1 + (int32_t)draw(&seed, 40));
  s->threads = threads;
  if (draw(&seed, 2) == 0) {
    s->formats.k = draw_format(&seed);
    s->formats.v = draw_format(&seed);
    s->scales = draw(&seed, 2) == 0;
  }
  s->prefix_cache = draw(&seed, 5) != 0;
  s->eos = draw(&seed, 2) == 0 ? EOS : -1;
  if (draw(&seed, 2) == 0) {
    s->sampling.temperature = 1;
    s->sampling.top_k = (int32_t)draw(&seed, 10);
    s->sampling.repetition_penalty = draw(&seed, 2) == 0 ? 1 : 1.3;
  }
  const uint64_t requests = 2 + draw(&seed, 14);
  const uint64_t families = 1 + draw(&seed, 3);
  const uint64_t equal = draw(&seed, 2); /* one or two of three prompts are a family's and nothing else */
  int32_t least = 1;
  for (uint64_t i = 0; i < requests; i++) {
    const uint64_t family = draw(&seed, families);
    const bool whole = draw(&seed, 3) <= equal;
    const int32_t shared = whole ? 13 * (1 + (int32_t)draw(&seed, 2)) : (int32_t)draw(&seed, 40);
    add_request(s, family, shared, whole ? 0 : 1 + (int32_t)draw(&seed, 12), 1 + (int32_t)draw(&seed, 60));
    const int32_t blocks = (s->lengths[i] + s->block_size - 1) / s->block_size;
    least = blocks > least ? blocks : least;
  }
  s->cache_blocks = draw(&seed, 4) == 0 ? 0 : least + (int32_t)draw(&seed, (uint64_t)least);
  const generate_sharing *found = run_scene(s);
  sum->preemptions += found->preemptions;
  sum->shared_blocks += found->shared_blocks;
  sum->forks += found->forks;
  sum->copies += found->copies;
  sum->evictions += found->evictions;
  sum->resumed_tokens += found->resumed_tokens;
  free_scene(s);
}

static uint64_t scenes;

static void test_fuzz(void **state) {
  (void)state;
  generate_sharing sum = {0};
  for (uint64_t seed = 0; seed < scenes; seed++) {
    fuzz_scene(seed, seed % 4 == 0 ? 2 : 1, &sum);
  }
  print_message("preemptions %d, shared blocks %d, forks %d, copies %d, evictions %d, tokens found again %d\n",
                (int)sum.preemptions, (int)sum.shared_blocks, (int)sum.forks, (int)sum.copies, (int)sum.evictions,
                (int)sum.resumed_tokens);
  const int least = scenes < 300 ? 10 : 20;
  assert_true(sum.preemptions > 5 * least && sum.shared_blocks > 5 * least && sum.forks > least && sum.copies > least &&
              sum.evictions > 5 * least && sum.resumed_tokens > 5 * least);
}

/* test_lm_schedule [SCENES] */
int main(int argc, char **argv) {
  scenes = (uint64_t)test_count(300, 150);
  if (argc > 1) {
    scenes = strtoull(argv[1], NULL, 10);
  }
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pool_of_the_longest),
      cmocka_unit_test(test_never_fits),
      cmocka_unit_test(test_room_for_all),
      cmocka_unit_test(test_prefix),
      cmocka_unit_test(test_short_prefix),
      cmocka_unit_test(test_reserve),
      cmocka_unit_test(test_prefix_of_decoded),
      cmocka_unit_test(test_equal_prompts),
      cmocka_unit_test(test_resume_finds_its_blocks),
      cmocka_unit_test(test_formats),
      cmocka_unit_test(test_fuzz),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
