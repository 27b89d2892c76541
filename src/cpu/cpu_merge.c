/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_merge.c: merging any number of parts. Weights are taken from differences of the lses in their own base, so that
   large lses lose nothing; sums are kept in double, so that the number of parts does not matter. A stretch of a row
   is read from every part before it is stored: the result may be one of the parts. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "core/fault.h"
#include "core/load.h"
#include "core/threads.h"
#include "cpu/cpu_work.h"

#define PART 64  /* elements of a row merged at a time */
#define VIEWS 16 /* parts whose views a thread keeps at hand */
#define ROWS 16  /* (token, head) rows that a task takes at a time */
#define LN2 0.69314718055994530942

typedef struct merge_job {
  const attn_cpu_table *table;
  const attn_merge_view *view;
  double unit; /* natural logarithm of the lses' base */
  atomic_llong next;
} merge_job;

/* Views of the parts [first, first + VIEWS), made when first asked for. */
typedef struct part_views {
  int32_t first;
  attn_view out[VIEWS];
  attn_view lse[VIEWS];
} part_views;

static void view_parts(const merge_job *job, part_views *parts, int32_t r) {
  if (parts->first >= 0 && r / VIEWS * VIEWS == parts->first) {
    return;
  }
  const attn_merge_args *args = job->view->args;
  int64_t any[3] = {ATTN_ANY, ATTN_ANY, ATTN_ANY};
  parts->first = r / VIEWS * VIEWS;
  for (int32_t i = 0; i < VIEWS && parts->first + i < args->num_parts; i++) {
    /* cannot fail: attn_merge() has checked every part */
    (void)attn_view_make(&parts->out[i], args->outs[parts->first + i], "out", ATTN_READ, ATTN_DTYPE_FLOATS, 3, any,
                         NULL);
    (void)attn_view_make(&parts->lse[i], args->lses[parts->first + i], "lse", ATTN_READ, ATTN_DTYPE_FLOATS, 2, any,
                         NULL);
  }
}

static double lse_of(const merge_job *job, part_views *parts, int32_t r, int64_t token, int64_t head) {
  view_parts(job, parts, r);
  const attn_view *view = &parts->lse[r - parts->first];
  return attn_load_float(view->data + token * view->stride[0] + head * view->stride[1]);
}

static int is_neutral(double lse) {
  if (attn_fault(ATTN_FAULT_MERGE_INF)) {
    return lse == -INFINITY;
  }
  return isinf(lse);
}

/* The largest lse of the parts that count; NaN when any is NaN, -inf when none counts. */
static double largest(const merge_job *job, part_views *parts, int64_t token, int64_t head) {
  double m = -INFINITY;
  for (int32_t r = 0; r < job->view->args->num_parts; r++) {
    double lse = lse_of(job, parts, r, token, head);
    if (isnan(lse)) {
      return lse;
    }
    m = !is_neutral(lse) && lse > m ? lse : m;
  }
  return m;
}

static double weight_of(const merge_job *job, part_views *parts, int32_t r, int64_t token, int64_t head, double m) {
  if (attn_fault(ATTN_FAULT_MERGE_SWAPPED) && r < 2 && job->view->args->num_parts > 1) {
    r = 1 - r;
  }
  double lse = lse_of(job, parts, r, token, head);
  if (attn_fault(ATTN_FAULT_MERGE_UNSHIFTED)) {
    return (double)expf((float)(lse * job->unit));
  }
  return exp((lse - m) * job->unit);
}

static double sink_weight(const merge_job *job, int64_t head, double m) {
  if (job->view->sinks.ndim == 0) {
    return 0.0;
  }
  float sink = attn_float_at(&job->view->sinks, head);
  return exp((double)sink - m * job->unit);
}

/* Elements [begin, begin + n) of one row: sum over the parts that count, into `sum`. */
static void sum_parts(const merge_job *job, part_views *parts, int64_t token, int64_t head, double m, int64_t begin,
                      int32_t n, double *sum) {
  memset(sum, 0, PART * sizeof *sum);
  for (int32_t r = 0; r < job->view->args->num_parts; r++) {
    double lse = lse_of(job, parts, r, token, head);
    double weight = weight_of(job, parts, r, token, head, m);
    if (is_neutral(lse) || (attn_fault(ATTN_FAULT_MERGE_NAN) && (float)weight == 0.0f)) {
      continue;
    }
    view_parts(job, parts, r);
    const attn_view *out = &parts->out[r - parts->first];
    const unsigned char *src = out->data + token * out->stride[0] + head * out->stride[1] + begin * out->stride[2];
    float part[PART];
    attn_cpu_load_rows(job->table, out->dtype, part, src, 0, out->stride[2], 1, n, n);
    for (int32_t i = 0; i < n; i++) {
      sum[i] += weight * (double)part[i];
    }
  }
}

static void store_part(const merge_job *job, int64_t token, int64_t head, int64_t begin, int32_t n, const double *sum,
                       double divisor) {
  const attn_view *out = &job->view->out;
  float part[PART];
  for (int32_t i = 0; i < n; i++) {
    part[i] = (float)(sum[i] / divisor);
  }
  attn_cpu_store_row(job->table, out->dtype,
                     out->data + token * out->stride[0] + head * out->stride[1] + begin * out->stride[2],
                     out->stride[2], part, 1.0f, n);
}

static void store_lse(const merge_job *job, int64_t token, int64_t head, double lse) {
  const attn_view *view = &job->view->lse;
  if (view->ndim > 0) {
    float value = (float)lse;
    memcpy(view->data + token * view->stride[0] + head * view->stride[1], &value, sizeof value);
  }
}

static void merge_row(const merge_job *job, part_views *parts, int64_t token, int64_t head) {
  double m = largest(job, parts, token, head);
  double total = 0.0;
  for (int32_t r = 0; r < job->view->args->num_parts && m > -INFINITY; r++) {
    if (!is_neutral(lse_of(job, parts, r, token, head))) {
      total += weight_of(job, parts, r, token, head, m);
    }
  }
  int empty = m == -INFINITY;
  double divisor = total + (empty ? 0.0 : sink_weight(job, head, m));
  for (int64_t begin = 0; begin < job->view->size; begin += PART) {
    int32_t n = (int32_t)attn_min(job->view->size - begin, PART);
    double sum[PART];
    memset(sum, 0, sizeof sum);
    if (isnan(m)) {
      divisor = m;
    } else if (empty) {
      divisor = 1.0;
    } else {
      sum_parts(job, parts, token, head, m, begin, n, sum);
    }
    store_part(job, token, head, begin, n, sum, divisor);
  }
  double lse = attn_fault(ATTN_FAULT_MERGE_SINK) ? log(divisor) : log(total);
  if (attn_fault(ATTN_FAULT_MERGE_UNSHIFTED)) {
    store_lse(job, token, head, log(total));
    return;
  }
  store_lse(job, token, head, isnan(m) || empty ? m : m * job->unit + lse);
}

static void merge_thread(void *argument, size_t thread) {
  (void)thread;
  merge_job *job = argument;
  part_views parts;
  parts.first = -1;
  int64_t rows = job->view->num_tokens * job->view->num_heads;
  for (;;) {
    int64_t begin = atomic_fetch_add_explicit(&job->next, ROWS, memory_order_relaxed);
    int64_t end = attn_min(begin + ROWS, rows);
    if (begin >= end) {
      return;
    }
    for (int64_t row = begin; row < end; row++) {
      merge_row(job, &parts, row / job->view->num_heads, row % job->view->num_heads);
    }
  }
}

attn_status attn_cpu_merge(const attn_context *context, const attn_merge_view *view, attn_message *message) {
  (void)message;
  merge_job job;
  job.table = context->table;
  job.view = view;
  job.unit = view->args->lse_base == ATTN_LSE_BASE_2 ? LN2 : 1.0;
  atomic_init(&job.next, 0);
  attn_threads_run(&context->threads, merge_thread, &job);
  return ATTN_OK;
}
