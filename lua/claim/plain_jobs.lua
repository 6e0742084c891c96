--[[ plain_jobs: takes the plain jobs of a priority, in order: jobs that return to the list's head, the list itself,
jobs that join its tail.

Entries of the list without a job (the job was cancelled, or returned as another entry) are skipped. A call skips at
most `sweep_max` of them one by one. Where many follow each other, it skips them by pages, which count an eighth,
so that a cancel of very many jobs does not delay the next job for long. Pages begin small and double, so that few large
payloads are read that the byte bound leaves for a later call.

Keys: state jobs ready
Meta: ties
Later: tombstones
Args: sweep_max
Kept: FRESH FRESH_LINES FRESH_NAMED
Uses: state(read_line count rank) stored_lines(waiting_line) claimed_jobs(take) sweep(swept_jobs)
    batch(call_many read_many) ready(return_ready lengths) meta(facts fact set_fact read_now) digits(digits)
    plain_queue(is_plain_queue)
]]

local RUN_MIN = 16           -- number of entries without a job, one after the other, after which pages are read
local PAGE = 64              -- number of entries in such a page
local SKIPS_PER_EFFORT = 8   -- number of entries skipped by pages that count as one skipped alone

local CALL = ' call='        -- the field of a line with the digest of the call; CALL_LENGTH is the length of a digest
local CALL_LENGTH = 32
local STATE_LENGTH = #'ready ' + 1
local SEQ_LENGTH = #' seq='
local SPACE = 32

local FRESH = {}     -- priority → the pattern of the first line of a value…
local FRESH_LINES = {}   -- …that of a state line with the same contents…
local FRESH_NAMED = {}   -- …and that of such a line of a unique job

local returning, joining, decided   -- the plain jobs that the sweep moved
local lengths_by     -- by priority: lengths of the lists
local given = {}     -- ids that were taken from a list
local skipped        -- number of entries without a job
local effort         -- the same, but an entry that was skipped with its page counts less
local passed = {}    -- by priority: number of entries to remove from the head of the list
local left_heads = {}   -- by priority: jobs that return and were not taken, as `return_ready` takes them
local left_tails = {}   -- by priority: ids of jobs that join and were not taken
local has_left = false  -- whether any job is in `left_heads` or `left_tails`

local source         -- the priority's sources, see `open_source`; nil if it has no plain jobs
local entries, entry_lines, entry_specs   -- a page of its list…
local entry          -- …and the index of its next entry
local entries_read   -- number of entries of the list that were skipped or taken
-- The job that `peek_plain` has found: its source, or nil; its id, spec, head and place in line; or its record.
local next_kind, next_id, next_spec
local next_job
local next_head
local next_seq
local before_call, behind_call   -- the texts around the digest of the call in the last line that has one; nil: none was met

local function reset()
  if lengths_by then
    lengths_by, given, passed = nil, {}, {}
  end
  if has_left then
    has_left, left_heads, left_tails = false, {}, {}
  end
  skipped, effort, source, returning, joining, decided = 0, 0, nil, nil, nil, nil
  entries, entry_lines, entry_specs, entry, entries_read = nil, nil, nil, nil, 0
  next_kind, next_id, next_spec, next_head, next_seq, next_job = nil, nil, nil, nil, nil, nil
  before_call, behind_call = nil, nil
end

--- Make the patterns of the usual first line of a value, and of the usual state line, of a job that was never claimed.
--- The text before the place in line is copied into the line of the claim. The value is not split: Lua hashes each byte
--- of a text that it makes, and the arguments may be long.
local function make_patterns()
  for name, at in pairs(PRIORITY_RANK) do
    local said = name == DEFAULT_PRIORITY and '' or ' priority=' .. name
    FRESH[at] = '^(task=%S+' .. said .. ') seq=(%d+) since=%d+\n'
    FRESH_LINES[at] = '^ready (task=%S+' .. said .. ') seq=(%d+) since=%d+$'
    FRESH_NAMED[at] = '^ready (task=%S+' .. said .. ' unique=%S+) seq=(%d+) since=%d+$'
  end
end

--- Return the two texts that the lines of jobs with remembered ids have in common: up to the digest of the call, and
--- from there up to the place in line. `head` is the text before the place in one of these lines. Return nil if the
--- line has no such digest.
local function around_call(head)
  local _, at = head:find(CALL, 1, true)
  if not at then
    return nil, nil
  end
  local behind = head:sub(at + CALL_LENGTH + 1) .. ' seq='
  return behind:byte() == SPACE and 'ready ' .. head:sub(1, at) or nil, behind
end

--- Return the text before the place in line, and the place, from a line that has these two texts around the digest of
--- its call, and behind them only its place and `since`; else nil.
local function place_around(line, beginning, behind)
  local size = #beginning
  local digest_end = size + CALL_LENGTH
  -- The digest has no space, so no field can be hidden in it.
  if line:find(beginning, 1, true) == 1 and line:find(' ', size + 1, true) == digest_end + 1
    and line:find(behind, digest_end + 1, true) == digest_end + 1 and #line <= LINE_MAX then
    local seq = line:match('^(%d+) since=%d+$', digest_end + #behind + 1)
    return seq and line:sub(STATE_LENGTH, digest_end + #behind - SEQ_LENGTH), seq
  end
  return nil, nil
end

--- Return the text before the place in line, and the place, from a job's line or, without one, from the first line of
--- its value; and true if the text has other fields than a usual one. Return nil unless the job is of this priority,
--- was never claimed, and is in no lane.
local function fresh_of(priority, line, spec)
  local head, seq
  if line and #line > LINE_MAX then
    return nil
  elseif line then
    head, seq = line:match(FRESH_LINES[priority])
    if not head and facts.ties then
      head, seq = line:match(FRESH_NAMED[priority])
    end
  else
    head, seq = spec:match(FRESH[priority])
  end
  if head and #head <= LINE_MAX then
    return head, seq
  end
  -- The pattern has one letter of the task, then anything: with `+` for all letters, Lua would try each number of them.
  if line then
    head, seq = line:match('^ready (task=%S.-) seq=(%d+) since=%d+$')
  else
    head, seq = spec:match('^(task=%S[^\n]-) seq=(%d+) since=%d+\n')
  end
  if not head or #head > LINE_MAX then
    return nil
  end
  local said = DEFAULT_PRIORITY
  for name, value in head:gmatch(' (%l+)=(%S+)') do
    if name == 'priority' then
      said = value
    elseif not STAYS[name] then
      return nil
    end
  end
  if PRIORITY_RANK[said] ~= priority then
    return nil
  end
  return head, seq, true
end

--- Return what fresh_of returns for a line. A line is first compared with the last one that had the digest of a call: this
--- is cheaper than matching patterns.
local function fresh_alike(priority, line)
  if before_call then
    local head, seq = place_around(line, before_call, behind_call)
    if head then
      return head, seq
    end
  end
  local head, seq, has_others = fresh_of(priority, line, nil)
  if has_others then
    before_call, behind_call = around_call(head)
  end
  return head, seq
end

local function by_age(a, b)
  return count(a, 'seq') < count(b, 'seq')
end

--- Read the lengths of the lists, before any job is taken.
local function open_lists()
  lengths_by = lengths(is_plain_queue())
  returning, joining, decided = swept_jobs()
end

--- Begin with a priority. Returns false if it has no plain jobs.
local function open_source(priority)
  next_kind, before_call = nil, nil   -- lines of another priority are not alike
  if not FRESH[priority] then
    make_patterns()
  end
  local length, back, new = lengths_by[priority], returning[priority], joining[priority]
  if length == 0 and not back and not new then
    source = nil
    return false
  end
  if back then
    table.sort(back, by_age)
  end
  if new then
    table.sort(new, by_age)
  end
  source = {
    priority = priority, length = length,
    returning = back, returned = 1, joining = new, joined = 1,   -- lists of records, each with the index of the next one
    step = 4,                                                    -- number of entries of the list to read next
  }
  entries, entry, entries_read = {}, 1, 0
  return true
end

--- Return whether the next entry of the list has a job, which then has been read.
local function read_entry(most)
  if entry > #entries then
    local step = source.step
    local list = ready[source.priority]
    entry = 1
    if most == 1 then
      local only = redis.call('LINDEX', list, digits(entries_read))
      entries = {only}
      entry_lines, entry_specs = {redis.call('HGET', state, only)}, {redis.call('HGET', jobs, only)}
    else
      local last = entries_read + math.min(most, step) - 1
      entries = redis.call('LRANGE', list, digits(entries_read), digits(last))
      source.step = math.min(step * 2, 1000)
      entry_lines, entry_specs = read_many(state, entries), read_many(jobs, entries)
    end
  end
  local id = entries[entry]
  local line, spec = entry_lines[entry], entry_specs[entry]
  if not line and not spec or decided[id] or given[id] then
    return false
  end
  local priority = source.priority
  next_job, next_head, next_seq = nil, nil, nil
  if line then
    next_head, next_seq = fresh_alike(priority, line)
  else
    next_head, next_seq = fresh_of(priority, nil, spec)
  end
  if not next_head then
    next_job = read_line(line or waiting_line(spec))
    if not next_job or next_job.state ~= 'ready' or next_job.lane or rank(next_job) ~= priority then
      return false
    end
    next_job.id, next_seq = id, next_job.seq
  end
  next_id, next_spec = id, spec
  return true
end

local function found_job(kind, job)
  next_kind, next_job = kind, job
  next_id, next_spec, next_head, next_seq = job.id, nil, nil, job.seq
  return kind
end

--- Skip the entries whose jobs are gone, page by page, up to an entry with a job. No value is read, since the values of
--- jobs that are there may be long.
local function skip_pages()
  local list, at_job = ready[source.priority], false
  entries, entry = {}, 1
  while not at_job and effort <= sweep_max and entries_read < source.length do
    local size = math.min(PAGE, source.length - entries_read)
    local ids = redis.call('LRANGE', list, digits(entries_read), digits(entries_read + size - 1))
    local lines, gone = read_many(state, ids), 0
    while gone < size and not lines[gone + 1] and redis.call('HEXISTS', jobs, ids[gone + 1]) == 0 do
      gone = gone + 1
    end
    skipped, effort, entries_read = skipped + gone, effort + gone / SKIPS_PER_EFFORT, entries_read + gone
    at_job = gone < size
  end
end

--- Skip the entry that was read, which has no job, and those after it up to an entry with a job. Returns whether there
--- is such an entry.
local function skip_entries(most)
  read_now('tombstones')
  local first = entries_read
  repeat
    skipped, effort, entry, entries_read = skipped + 1, effort + 1, entry + 1, entries_read + 1
    if entry > #entries and entries_read - first >= RUN_MIN then
      skip_pages()
      first = entries_read
    end
    if entries_read == source.length or effort > sweep_max then
      return false
    end
  until read_entry(most)
  return true
end

--- Find the next plain job, and set next_id and the other variables. `most` more jobs can be taken. Returns nil at the
--- end of all sources.
local function peek_plain(most)
  if next_kind then
    return next_kind
  end
  local from = source
  local job = from.returning and from.returning[from.returned]
  if job then
    return found_job('returning', job)
  end
  local length = from.length
  if entries_read < length and effort <= sweep_max and (read_entry(most) or skip_entries(most)) then
    next_kind = 'list'
    return next_kind
  end
  job = entries_read == length and from.joining and from.joining[from.joined]
  if job then
    return found_job('joining', job)
  end
  return nil
end

--- Return the job that was found, and go on to the next one: id, spec, head, place in line; its record, if that was
--- read; its line, if it has one.
local function pass_plain()
  local line
  if next_kind == 'list' then
    line = entry_lines[entry]
    given[next_id] = true
    entry, entries_read = entry + 1, entries_read + 1
  elseif next_kind == 'returning' then
    source.returned = source.returned + 1
  else
    source.joined = source.joined + 1
  end
  next_kind = nil
  return next_id, next_spec, next_head, next_seq, next_job, line
end

--- Take the plain job that was found, and the jobs after it on the page that were never claimed either. Use this only
--- in a call in which no other job can come first, since no other source is looked at.
local function take_run()
  local priority, at = source.priority, entry
  local id, spec, head, seq = next_id, next_spec, next_head, next_seq
  local usual = head                  -- most jobs of a run begin alike; comparing the text is cheaper than matching a pattern
  local beginning = head .. ' seq='
  local beginning_of_line = 'ready ' .. beginning
  repeat
    given[id] = true
    local is_last = take(id, spec, '', '', head, seq, nil)
    at = at + 1
    id = entries[at]
    spec = entry_specs[at]
    if is_last or not spec or given[id] or decided[id] then
      break
    end
    local line = entry_lines[at]
    seq = nil
    if not line then
      seq = spec:find(beginning, 1, true) == 1 and spec:match('^%d+', #beginning + 1)
    elseif beginning_of_line and line:find(beginning_of_line, 1, true) == 1 then
      seq = line:match('^(%d+) since=%d+$', #beginning_of_line + 1)
    else
      beginning_of_line = nil   -- lines with names or keys are all different
    end
    if seq then
      head = usual
    elseif line then
      head, seq = fresh_alike(priority, line)
    else
      head, seq = fresh_of(priority, nil, spec)
    end
  until not head
  entry, entries_read, next_kind = at, entries_read + at - entry, nil
end

--- Return the task of the job that was found.
local function next_task()
  return next_job and next_job.task or next_head:match('^task=(%S+)')
end

--- Keep the jobs that are left in the sources of this priority. Returns their number.
local function close_source()
  local from, priority = source, source.priority
  local left = from.length - entries_read
  if entries_read > 0 then
    passed[priority] = entries_read
  end
  for i = from.returned, from.returning and #from.returning or 0 do
    local job = from.returning[i]
    local list = left_heads[priority] or {}
    has_left, left_heads[priority] = true, list
    list[#list + 1] = {job.id, count(job, 'seq')}
    left = left + 1
  end
  for i = from.joined, from.joining and #from.joining or 0 do
    local list = left_tails[priority] or {}
    has_left, left_tails[priority] = true, list
    list[#list + 1] = from.joining[i].id
    left = left + 1
  end
  return left
end

--- Write the plain lists.
local function write_plain_jobs()
  for priority = 0, 3 do
    local gone, back, new = passed[priority], left_heads[priority], left_tails[priority]
    if gone then
      redis.call('LTRIM', ready[priority], digits(gone), '-1')
    end
    if back then
      return_ready(priority, back)
    end
    if new then
      call_many('RPUSH', ready[priority], new)
    end
  end
  if skipped > 0 then
    set_fact('tombstones', math.max(0, fact('tombstones') - skipped))
  end
end
