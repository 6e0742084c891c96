--[[ name_requests: which of a call's jobs may have the names that they ask for, and which jobs they replace.

A job whose name another one holds is not accepted. But if its kind says `replace`, and the other one waits, was never claimed and holds no name
until an instant, that one leaves, and the new job is in its place. Of several such jobs of one call with one name, the last one that is sure
to be accepted is: one whose id no other job has had, and that no rule of a full scope may keep out. The others are held by it. A job that
this call replaces leaves its id to later records, unless that is remembered.

A job whose kind says `after` is due so long after the call, so each replacement puts it off, but not beyond what the line of the
replaced one says of the latest. From then on a replacement takes the old job's place in line: else calls that come faster than
workers would put the job off for ever.

A job that waits and whose deadline is over holds its name from no job (see include/names/name_overdue).

The list `wanted` has by record the field of `slots` for its name, `digests` and `names` what its digest is made of; `asked`
has who holds each of these fields, `taken` fields and ids of the names that are taken, `replaced` what the event says of each job that
is replaced, `lapsed` the fields whose instant is over, `overdue` by field the ids and records of jobs that are to yield, `last` the record that
gets a field of those that replace, `deferred` the fields for which one has given way to that, `fronts` by priority the ids and places of
plain jobs that have the place of one that they replaced.

Keys: slots state
Lists: deferred digests fronts holders lapsed last names overdue replaced taken waiting wanted
Uses: call(now now_text) parts(list_of) batch(call_many read_many) names(name_field name_mark holder_in) state(read_line) removal(end_job)
    unqueue(unqueue) deadline(note_coming note_over) digits(digits) ready(return_ready) idempotency(note_replaced leave_id has_left) emit(emit)
    name_overdue(is_yielding yield_name)
]]

local lists = {}

--- A record asks for the name that stands behind its digest. False if none stands there.
local function want_name(i, digest)
  local plain, name = digest:match('^(%x+) ([%w_.:~%%/=,-]+)$')
  if not plain then
    return false
  end
  list_of(lists, 'wanted')[i] = name_field(name)
  list_of(lists, 'digests')[i], list_of(lists, 'names')[i] = plain, name
  return true
end

--- Read who holds the names that are wanted. Returns the jobs that hold one with no instant, and the names, by job.
local function read_names(size)
  local wanted, held_by, fields, names = lists.wanted, list_of(lists, 'holders'), {}, {}
  local lasting, name_of = {}, {}
  for i = 1, size do
    local field = wanted[i]
    if field and held_by[field] == nil then
      held_by[field] = false
      fields[#fields + 1], names[#names + 1] = field, lists.names[i]
    end
  end
  local held = read_many(slots, fields)
  for i = 1, #fields do
    local field, holder = fields[i], holder_in(held[i], now)
    if holder == held[i] and has_left(holder) then
      holder = nil   -- it has just expired
    end
    held_by[field] = holder or false
    if holder and holder == held[i] then
      lasting[#lasting + 1] = holder
      name_of[holder] = names[i]
    elseif held[i] and not holder then
      list_of(lists, 'lapsed')[field] = true
    end
  end
  return lasting, name_of
end

--- Read who holds the names, and what may be replaced. `kind_if_sure(i)` is the kind of record i; nil if its id may be another job's.
local function read_holders(size, kind_if_sure)
  local wanted = lists.wanted
  if not wanted then
    return
  end
  local candidates, last, held_by = list_of(lists, 'waiting'), list_of(lists, 'last'), list_of(lists, 'holders')
  local ids, name_of = read_names(size)
  local lines = read_many(state, ids)
  for i = 1, #ids do
    local holder, job = ids[i], read_line(lines[i])
    if is_yielding(job, name_of[holder]) then
      local field = name_field(job.unique)
      list_of(lists, 'overdue')[field] = {holder, job}
      held_by[field] = false
    elseif job and not job.claim and (job.state == 'ready' or job.state == 'scheduled') then
      candidates[holder] = job
    end
  end
  for i = 1, size do
    local kind = wanted[i] and kind_if_sure(i)
    if kind and kind.unique == 'replace' and kind.full == '' then
      last[wanted[i]] = i
    end
  end
end

--- Who keeps the name of a record's job from it; nil if it may have the name. `ids` are those of the records.
local function kept_by(i, kind, ids)
  local field = lists.wanted[i]
  local holder, last = lists.holders[field], lists.last[field]
  local replaces = kind.unique == 'replace'
  local is_before = last and last > i
  if is_before and lists.deferred and lists.deferred[field] then
    return ids[last]
  elseif holder and not (replaces and lists.waiting[holder]) then
    return holder
  elseif replaces and is_before then
    list_of(lists, 'deferred')[field] = true
    return ids[last]
  end
  return nil
end

--- A record's job is accepted: it takes its name. Returns its digest, its name, and until when that stands, as its line says it; when
--- the job is due, if its kind says `after`; and the id of the job that it replaces, and the place in line that it has from it, if any.
local function take_name(i, id, kind, lane)
  local field, name = lists.wanted[i], lists.names[i]
  local old, place = lists.holders[field] or nil, nil
  local old_job = old and lists.waiting[old]
  local stands, due_at, held, latest = nil, nil, id, nil
  if kind.after then
    latest = old_job and (old_job.stands or ''):match('^claim:(%d+)$') or digits(now + kind.most)
    stands, due_at = 'claim:' .. latest, math.min(now + kind.after, tonumber(latest))
  elseif kind.window then
    local ends = digits(now + kind.window)
    stands, held = 'until:' .. ends, id .. ' ' .. ends
    note_coming(name_mark(name), ends)
  end
  if lists.lapsed and lists.lapsed[field] and not kind.window then
    note_over(name_mark(name))
  end
  local overdue = lists.overdue and lists.overdue[field]
  if overdue then
    yield_name(overdue[1], overdue[2])
    list_of(lists, 'overdue')[field] = nil
  end
  if old then
    if old_job.state == 'ready' and (old_job.lane or '') == lane and (lane ~= '' or latest and tonumber(latest) <= now) then
      place = old_job.seq
      if lane == '' then
        local fronts = list_of(lists, 'fronts')
        fronts[kind.priority] = fronts[kind.priority] or {}
        local front = fronts[kind.priority]
        front[#front + 1] = {id, tonumber(place)}
      end
    end
    end_job(old, old_job)
    unqueue(old, old_job)
    local replaced = list_of(lists, 'replaced')
    replaced[#replaced + 1] = '["' .. old .. '","' .. id .. '"]'
    leave_id(old)
    list_of(lists, 'waiting')[old] = nil   -- a later record may bring another job of this id
    note_replaced(old, old_job, id)
  end
  list_of(lists, 'holders')[field] = id
  local taken = list_of(lists, 'taken')
  taken[#taken + 1], taken[#taken + 2] = field, held
  return lists.digests[i], name, stands, due_at, old, place
end

local function append(actor)
  emit('replaced', now_text, actor, lists.replaced)
end

--- Write the names, and the plain jobs that have the places of those that they replaced: each goes to the head of its list, since
--- its place is older than those at the tail.
local function write()
  call_many('HSET', slots, lists.taken)
  for priority = 0, lists.fronts and 3 or -1 do
    return_ready(priority, lists.fronts[priority] or {})
  end
end
