--[[ remembered: ids that outlive their jobs, so that a producer may repeat a call: while such a job lives, and up to a moment (the field
`once` of its line), another one of its id is a duplicate.

When such a job leaves, its id gets a field in `results`, and a member in `kept` at the moment at which both are forgotten. An id is
in `jobs` or in `results`, never in both. The field is one line:

    OUTCOME at=MS [fence=F] once=MS [call=DIGEST]       succeeded at=1795225746504 fence=1795225746504-88 once=1795311906504 call=70c5…
    same job=ID at=MS once=MS [call=DIGEST]             what was asked for stands as the unique job ID

OUTCOME is succeeded, cancelled, expired or dead; `at` says since when, `fence` is that of the claim that ended so. What stands behind
a line break is left alone. A line without `once` makes no id a duplicate. A job that left before its first claim leaves no line: it has done nothing.

The fact `remembers` says that the queue has had such jobs. `results_bytes` in `meta` counts what all fields have. Lists, all `seldom`: `kept_lines`
and `kept_marks`, ids with their lines and moments; `forgotten`, ids.

Keys: results kept
Meta: remembers
Later: results_bytes
Unread: results kept
Uses: call(now now_text seldom_list seldom) meta(facts fact set_fact read_now) batch(call_many) digits(digits)
]]

local growth   -- by how many bytes `results` grows

local function reset()
  growth = 0
end

--- Whether the call needs the keys and does not carry them.
local function lacks_results()
  return facts.remembers and not results
end

--- The call will write these keys.
local function meet_results()
  if not (seldom and seldom.kept_lines) then
    check_keys()
    read_now('results_bytes')
    seldom_list('kept_lines')
  end
end

--- Keep a line for an id that has none, up to this moment.
local function keep_line(id, line, until_ms)
  meet_results()
  local lines, marks = seldom_list('kept_lines'), seldom_list('kept_marks')
  lines[#lines + 1], lines[#lines + 2] = id, line
  marks[#marks + 1], marks[#marks + 2] = until_ms, id
  growth = growth + #line
end

--- A job leaves whose id is remembered. `once` and `call_digest` are those of its line.
local function keep_outcome(id, outcome, at, fence, once, call_digest)
  if tonumber(once) <= now then
    return
  end
  keep_line(id, outcome .. ' at=' .. at .. (fence and ' fence=' .. fence or '') .. ' once=' .. once ..
    (call_digest and ' call=' .. call_digest or ''), once)
end

--- Forget an id, whose field has so many bytes.
local function forget_line(id, size)
  meet_results()
  local forgotten = seldom_list('forgotten')
  forgotten[#forgotten + 1] = id
  growth = growth - size
end

--- Forget what is over, so many ids at most. Returns whether more may be left.
local function forget_over(most)
  local ids = redis.call('ZRANGEBYSCORE', kept, '-inf', now_text, 'LIMIT', '0', digits(most))
  for i = 1, #ids do
    forget_line(ids[i], redis.call('HSTRLEN', results, ids[i]))
  end
  return #ids == most
end

--- Write that. Nothing has to be done if nothing is `seldom`.
local function write_results()
  if seldom.kept_lines then
    call_many('HDEL', results, seldom.forgotten)
    call_many('ZREM', kept, seldom.forgotten)
    call_many('HSET', results, seldom.kept_lines)
    call_many('ZADD', kept, seldom.kept_marks)
    set_fact('results_bytes', math.max(0, fact('results_bytes') + growth))
  end
end
