/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The matrix product by oneDNN's matmul, versions 2.6 to 3.x; the few calls whose shape changed between the two are
 * wrapped at the top. A weight asks matmul once for the layout it likes, is reordered into it, and the plain copy is
 * freed. Primitives are cached per row count; larger batches are cut into chunks of few sizes. The OpenMP runtime that
 * oneDNN brought along is reached by its symbols, whichever it is: it takes its thread count from the calling thread,
 * and its team is lent to the attention too, so that two sets of threads never spin side by side.
 */
#define _GNU_SOURCE
#include "gemm.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t layout;
#define BORROW(l) (*(l))

static dnnl_status_t layout_init(layout *out, int64_t rows, int64_t columns, dnnl_data_type_t type,
                                 dnnl_format_tag_t tag) {
  const dnnl_dims_t dims = {rows, columns};
  return dnnl_memory_desc_create_with_tag(out, 2, dims, type, tag);
}

static dnnl_status_t layout_copy(layout *out, const_dnnl_memory_desc_t from) {
  return dnnl_memory_desc_clone(out, from);
}

static void layout_free(layout *l) {
  if (*l != NULL) {
    (void)dnnl_memory_desc_destroy(*l);
  }
  *l = NULL;
}

static dnnl_status_t describe_matmul(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const layout *x,
                                     const layout *weights, const layout *y) {
  return dnnl_matmul_primitive_desc_create(out, engine, *x, *weights, NULL, *y, NULL);
}
#else
typedef dnnl_memory_desc_t layout;
#define BORROW(l) (l)

static dnnl_status_t layout_init(layout *out, int64_t rows, int64_t columns, dnnl_data_type_t type,
                                 dnnl_format_tag_t tag) {
  const dnnl_dims_t dims = {rows, columns};
  return dnnl_memory_desc_init_by_tag(out, 2, dims, type, tag);
}

static dnnl_status_t layout_copy(layout *out, const dnnl_memory_desc_t *from) {
  *out = *from;
  return dnnl_success;
}

static void layout_free(layout *l) {
  (void)l;
}

static dnnl_status_t describe_matmul(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const layout *x,
                                     const layout *weights, const layout *y) {
  dnnl_matmul_desc_t operation;
  const dnnl_status_t status = dnnl_matmul_desc_init(&operation, x, weights, NULL, y);
  return status != dnnl_success ? status : dnnl_primitive_desc_create(out, &operation, NULL, engine, NULL);
}
#endif

/* Row counts up to EXACT_ROWS have a primitive each; larger batches run in pieces of CHUNK_ROWS, then a multiple of 16,
 * then an exact rest. */
enum { EXACT_ROWS = 32, STEP_ROWS = 16, CHUNK_ROWS = 256, SHAPES = EXACT_ROWS + CHUNK_ROWS / STEP_ROWS };

/* A prepared product for one weight shape and row count; memories get their addresses at each call. */
typedef struct product {
  dnnl_primitive_t primitive;
  dnnl_memory_t x;
  dnnl_memory_t weights;
  dnnl_memory_t y;
} product;

/* Weights of one shape share a layout and the products. */
typedef struct shape {
  struct shape *next;
  int64_t n;
  int64_t k;
  layout packed;
  size_t packed_bytes;
  product products[SHAPES + 1];
} shape;

struct gemm_engine {
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  int32_t threads;
  void (*set_threads)(int);                                       /* omp_set_num_threads */
  void (*run_team)(void (*)(void *), void *, unsigned, unsigned); /* GOMP_parallel */
  attn_executor executor;
  dnnl_data_type_t type; /* of x and W as they are multiplied */
  uint16_t *rounded;     /* x in bfloat16 */
  size_t rounded_count;
  shape *shapes;
};

struct gemm_weight {
  shape *shape;
  void *packed;
};

const char *gemm_name(void) {
  static char name[32];
  (void)snprintf(name, sizeof name, "oneDNN %d.%d", dnnl_version()->major, dnnl_version()->minor);
  return name;
}

/* Threads that wait by spinning for milliseconds, the runtime's default, make a step tens of times slower as soon as
   anything else runs on the machine; SPINS checks bridge the gaps between the products of a layer and no more. */
#define SPINS "2000"

void gemm_prepare_process(char **argv) {
  if (getenv("OMP_WAIT_POLICY") == NULL && getenv("GOMP_SPINCOUNT") == NULL &&
      setenv("GOMP_SPINCOUNT", SPINS, 1) == 0) {
    (void)execv("/proc/self/exe", argv); /* if it fails, the default serves */
  }
}

static attn_status failed(attn_message *message, const char *what, dnnl_status_t status) {
  if (status == dnnl_out_of_memory) {
    return lm_fail(message, ATTN_E_NOMEM, "oneDNN: no memory for %s", what);
  }
  return lm_fail(message, ATTN_E_INTERNAL, "oneDNN: %s failed with status %d", what, (int)status);
}

/* One parallel call: the members of the team take indices until none is left. */
typedef struct team_call {
  attn_task task;
  void *argument;
  size_t count;
  atomic_size_t next;
} team_call;

static void team_member(void *data) {
  team_call *call = data;
  for (;;) {
    const size_t index = atomic_fetch_add(&call->next, 1);
    if (index >= call->count) {
      return;
    }
    call->task(call->argument, index);
  }
}

static void run_on_team(void *user, attn_task task, void *argument, size_t count) {
  const gemm_engine *engine = user;
  team_call call = {task, argument, count, 0};
  engine->run_team(team_member, &call, (unsigned)engine->threads, 0);
}

static attn_status bind_threads(gemm_engine *engine, attn_message *message) {
  void *set_threads = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
  void *run_team = dlsym(RTLD_DEFAULT, "GOMP_parallel");
  if (set_threads != NULL) {
    memcpy(&engine->set_threads, &set_threads, sizeof set_threads);
    engine->set_threads(engine->threads);
  }
  if (set_threads != NULL && run_team != NULL) {
    memcpy(&engine->run_team, &run_team, sizeof run_team);
    engine->executor = (attn_executor){engine, run_on_team};
  }
#if DNNL_CPU_THREADING_RUNTIME != DNNL_RUNTIME_SEQ
  if (set_threads == NULL) {
    return lm_fail(message, ATTN_E_UNSUPPORTED,
                   "oneDNN's threads are not OpenMP's here, so %d threads cannot be kept to", (int)engine->threads);
  }
#endif
  (void)message;
  return ATTN_OK;
}

const attn_executor *gemm_executor(const gemm_engine *engine) {
  return engine->run_team != NULL ? &engine->executor : NULL;
}

static void free_product(product *p) {
  if (p->primitive != NULL) {
    (void)dnnl_primitive_destroy(p->primitive);
  }
  dnnl_memory_t memories[] = {p->x, p->weights, p->y};
  for (size_t i = 0; i < sizeof memories / sizeof memories[0]; i++) {
    if (memories[i] != NULL) {
      (void)dnnl_memory_destroy(memories[i]);
    }
  }
  memset(p, 0, sizeof *p);
}

void gemm_destroy(gemm_engine *engine) {
  if (engine == NULL) {
    return;
  }
  while (engine->shapes != NULL) {
    shape *s = engine->shapes;
    engine->shapes = s->next;
    for (int i = 0; i <= SHAPES; i++) {
      free_product(&s->products[i]);
    }
    layout_free(&s->packed);
    free(s);
  }
  free(engine->rounded);
  if (engine->stream != NULL) {
    (void)dnnl_stream_destroy(engine->stream);
  }
  if (engine->engine != NULL) {
    (void)dnnl_engine_destroy(engine->engine);
  }
  free(engine);
}

/* The layout that matmul likes for the weights of a batch of decodes. */
static dnnl_status_t ask_layout(gemm_engine *engine, shape *s) {
  layout x = {0};
  layout any = {0};
  layout y = {0};
  dnnl_primitive_desc_t description = NULL;
  dnnl_status_t status = layout_init(&x, STEP_ROWS, s->k, engine->type, dnnl_ab);
  if (status == dnnl_success) {
    status = layout_init(&any, s->k, s->n, engine->type, dnnl_format_tag_any);
  }
  if (status == dnnl_success) {
    status = layout_init(&y, STEP_ROWS, s->n, dnnl_f32, dnnl_ab);
  }
  if (status == dnnl_success) {
    status = describe_matmul(&description, engine->engine, &x, &any, &y);
  }
  if (status == dnnl_success) {
    status = layout_copy(&s->packed, dnnl_primitive_desc_query_md(description, dnnl_query_weights_md, 0));
    s->packed_bytes = dnnl_memory_desc_get_size(BORROW(&s->packed));
    (void)dnnl_primitive_desc_destroy(description);
  }
  layout_free(&x);
  layout_free(&any);
  layout_free(&y);
  return status;
}

/* The instruction sets are no scale: the ones whose bit is set include those of its bits. */
static bool native_bfloat16(void) {
  const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
  return (isa & (unsigned)dnnl_cpu_isa_avx512_core_bf16) == (unsigned)dnnl_cpu_isa_avx512_core_bf16;
}

/* bfloat16 where it is wanted or native; that oneDNN has it at all here, a small product's description says. */
static attn_status choose_type(gemm_engine *engine, gemm_compute compute, attn_message *message) {
  if (compute == GEMM_FLOAT32 || (compute == GEMM_FASTER && !native_bfloat16())) {
    return ATTN_OK;
  }
  shape probe = {.n = 64, .k = 64};
  engine->type = dnnl_bf16;
  const dnnl_status_t status = ask_layout(engine, &probe);
  layout_free(&probe.packed);
  if (status == dnnl_success) {
    return ATTN_OK;
  }
  engine->type = dnnl_f32;
  return compute == GEMM_FASTER ? ATTN_OK
                                : lm_fail(message, ATTN_E_NO_DEVICE,
                                          "--compute bfloat16: %s has no such product on this processor; accepted is "
                                          "float32",
                                          gemm_name());
}

attn_status gemm_create(int32_t threads, gemm_compute compute, gemm_engine **out, attn_message *message) {
  gemm_engine *engine = calloc(1, sizeof *engine);
  if (engine == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the matrix product");
  }
  engine->threads = threads;
  engine->type = dnnl_f32;
  attn_status status = bind_threads(engine, message);
  if (status == ATTN_OK) {
    dnnl_status_t made = dnnl_engine_create(&engine->engine, dnnl_cpu, 0);
    if (made == dnnl_success) {
      made = dnnl_stream_create(&engine->stream, engine->engine, dnnl_stream_default_flags);
    }
    status = made == dnnl_success ? ATTN_OK : failed(message, "making an engine", made);
  }
  if (status == ATTN_OK) {
    status = choose_type(engine, compute, message);
  }
  if (status != ATTN_OK) {
    gemm_destroy(engine);
    return status;
  }
  *out = engine;
  return ATTN_OK;
}

gemm_compute gemm_compute_of(const gemm_engine *engine) {
  return engine->type == dnnl_bf16 ? GEMM_BFLOAT16 : GEMM_FLOAT32;
}

static attn_status find_shape(gemm_engine *engine, int64_t n, int64_t k, shape **out, attn_message *message) {
  for (shape *s = engine->shapes; s != NULL; s = s->next) {
    if (s->n == n && s->k == k) {
      *out = s;
      return ATTN_OK;
    }
  }
  shape *s = calloc(1, sizeof *s);
  if (s == NULL) {
    return lm_fail(message, ATTN_E_NOMEM, "no memory for the matrix product");
  }
  s->n = n;
  s->k = k;
  const dnnl_status_t status = ask_layout(engine, s);
  if (status != dnnl_success) {
    free(s);
    return failed(message, "asking for a layout", status);
  }
  s->next = engine->shapes;
  engine->shapes = s;
  *out = s;
  return ATTN_OK;
}

/* target = source in the weight's layout. */
static dnnl_status_t reorder(gemm_engine *engine, const shape *s, float *plain, void *packed) {
  layout from = {0};
  dnnl_memory_t source = NULL;
  dnnl_memory_t target = NULL;
  dnnl_primitive_desc_t description = NULL;
  dnnl_primitive_t primitive = NULL;
  dnnl_status_t status = layout_init(&from, s->k, s->n, dnnl_f32, dnnl_ba);
  if (status == dnnl_success) {
    status = dnnl_memory_create(&source, BORROW(&from), engine->engine, plain);
  }
  if (status == dnnl_success) {
    status = dnnl_memory_create(&target, BORROW(&s->packed), engine->engine, packed);
  }
  if (status == dnnl_success) {
    status = dnnl_reorder_primitive_desc_create(&description, BORROW(&from), engine->engine, BORROW(&s->packed),
                                                engine->engine, NULL);
  }
  if (status == dnnl_success) {
    status = dnnl_primitive_create(&primitive, description);
    (void)dnnl_primitive_desc_destroy(description);
  }
  if (status == dnnl_success) {
    const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, source}, {DNNL_ARG_TO, target}};
    status = dnnl_primitive_execute(primitive, engine->stream, 2, arguments);
    if (status == dnnl_success) {
      status = dnnl_stream_wait(engine->stream);
    }
    (void)dnnl_primitive_destroy(primitive);
  }
  if (source != NULL) {
    (void)dnnl_memory_destroy(source);
  }
  if (target != NULL) {
    (void)dnnl_memory_destroy(target);
  }
  layout_free(&from);
  return status;
}

attn_status gemm_weight_create(gemm_engine *engine, int64_t n, int64_t k, gemm_rows rows, void *context,
                               gemm_weight **out, attn_message *message) {
  shape *s = NULL;
  attn_status status = find_shape(engine, n, k, &s, message);
  if (status != ATTN_OK) {
    return status;
  }
  gemm_weight *weight = calloc(1, sizeof *weight);
  float *plain = malloc((size_t)n * (size_t)k * sizeof *plain);
  void *packed = NULL;
  if (weight == NULL || plain == NULL || posix_memalign(&packed, 64, s->packed_bytes) != 0) {
    free(weight);
    free(plain);
    return lm_fail(message, ATTN_E_NOMEM, "no memory for a weight of %lld x %lld", (long long)n, (long long)k);
  }
  rows(context, 0, n, plain);
  const dnnl_status_t reordered = reorder(engine, s, plain, packed);
  free(plain);
  if (reordered != dnnl_success) {
    free(weight);
    free(packed);
    return failed(message, "reordering a weight", reordered);
  }
  *weight = (gemm_weight){s, packed};
  *out = weight;
  return ATTN_OK;
}

void gemm_weight_destroy(gemm_weight *weight) {
  if (weight != NULL) {
    free(weight->packed);
    free(weight);
  }
}

static dnnl_status_t make_product(gemm_engine *engine, const shape *s, int64_t m, product *p) {
  layout x = {0};
  layout y = {0};
  dnnl_primitive_desc_t description = NULL;
  dnnl_status_t status = layout_init(&x, m, s->k, engine->type, dnnl_ab);
  if (status == dnnl_success) {
    status = layout_init(&y, m, s->n, dnnl_f32, dnnl_ab);
  }
  if (status == dnnl_success) {
    status = describe_matmul(&description, engine->engine, &x, &s->packed, &y);
  }
  if (status == dnnl_success) {
    status = dnnl_primitive_create(&p->primitive, description);
    (void)dnnl_primitive_desc_destroy(description);
  }
  if (status == dnnl_success) {
    status = dnnl_memory_create(&p->x, BORROW(&x), engine->engine, DNNL_MEMORY_NONE);
  }
  if (status == dnnl_success) {
    status = dnnl_memory_create(&p->y, BORROW(&y), engine->engine, DNNL_MEMORY_NONE);
  }
  if (status == dnnl_success) {
    status = dnnl_memory_create(&p->weights, BORROW(&s->packed), engine->engine, DNNL_MEMORY_NONE);
  }
  layout_free(&x);
  layout_free(&y);
  if (status != dnnl_success) {
    free_product(p);
  }
  return status;
}

static dnnl_status_t set_address(dnnl_memory_t memory, const void *address) {
  void *plain = (void *)(uintptr_t)address;
#if DNNL_VERSION_MAJOR >= 3
  return dnnl_memory_set_data_handle(memory, plain);
#else
  return dnnl_memory_set_data_handle_v2(memory, plain, NULL);
#endif
}

static dnnl_status_t run_product(gemm_engine *engine, const gemm_weight *weight, int64_t m, const void *x, float *y) {
  const int64_t slot = m <= EXACT_ROWS ? m : EXACT_ROWS + m / STEP_ROWS;
  product *p = &weight->shape->products[slot];
  dnnl_status_t status = p->primitive != NULL ? dnnl_success : make_product(engine, weight->shape, m, p);
  if (status == dnnl_success) {
    status = set_address(p->x, x);
  }
  if (status == dnnl_success) {
    status = set_address(p->y, y);
  }
  if (status == dnnl_success) {
    status = set_address(p->weights, weight->packed);
  }
  if (status != dnnl_success) {
    return status;
  }
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, p->x}, {DNNL_ARG_WEIGHTS, p->weights}, {DNNL_ARG_DST, p->y}};
  status = dnnl_primitive_execute(p->primitive, engine->stream, 3, arguments);
  return status == dnnl_success ? dnnl_stream_wait(engine->stream) : status;
}

/* To the nearest, ties to even; what is not a number stays that. */
static uint16_t round_to_bfloat16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return (uint16_t)(bits >> 16 | 0x40u);
  }
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* The rows as they are multiplied; NULL without memory. */
static const void *convert_rows(gemm_engine *engine, const float *x, size_t count) {
  if (engine->type == dnnl_f32) {
    return x;
  }
  if (engine->rounded_count < count) {
    free(engine->rounded);
    engine->rounded_count = 0;
    engine->rounded = malloc(count * sizeof engine->rounded[0]);
    if (engine->rounded == NULL) {
      return NULL;
    }
    engine->rounded_count = count;
  }
  for (size_t i = 0; i < count; i++) {
    engine->rounded[i] = round_to_bfloat16(x[i]);
  }
  return engine->rounded;
}

attn_status gemm_run(gemm_engine *engine, const gemm_weight *weight, int64_t m, const float *x, float *y,
                     attn_message *message) {
  if (engine->set_threads != NULL) {
    engine->set_threads(engine->threads);
  }
  int64_t done = 0;
  while (done < m) {
    int64_t count = m - done;
    if (count > CHUNK_ROWS) {
      count = CHUNK_ROWS;
    } else if (count > EXACT_ROWS) {
      count -= count % STEP_ROWS;
    }
    const int64_t k = weight->shape->k;
    const void *rows = convert_rows(engine, x + done * k, (size_t)count * (size_t)k);
    const dnnl_status_t status =
        rows != NULL ? run_product(engine, weight, count, rows, y + done * weight->shape->n) : dnnl_out_of_memory;
    if (status != dnnl_success) {
      return failed(message, "a matrix product", status);
    }
    done += count;
  }
  return ATTN_OK;
}
