--[[ configure: an operator pauses or resumes a queue, or changes one of its settings.

Flags: allow-oom
Meta: lease_ms dead_retention_ms sequence fair fair_clock fair_top
Args: slot number:int by why
Each: field value:int
Uses: call(open_call close_call now) meta(facts fact set_fact) emit(emit_queue) gate_opens(note_gate wake_if_gate_opens)
Returns: ok {FIELD changed|same}… | refused field FIELD | epoch
Invariants: I5
]]

local refusal = open_call()
if refusal then
  return refusal
end
for i = 1, each_count do
  local field, value = each(i)
  local minimum = FLAGS[field] and 0 or MINIMA[field]
  if not minimum or value < minimum or FLAGS[field] and value > 1 then
    return {'refused', 'field', field}
  end
end
note_gate()

local answer = {}
for i = 1, each_count do
  local field, value = each(i)
  local old = fact(field)
  -- A value that an operator wrote by hand and that is not a number counts as the default. The call overwrites it with
  -- a number.
  local same = old == value and (not facts[field] or tonumber(facts[field]) == value)
  answer[#answer + 1], answer[#answer + 2] = field, same and 'same' or 'changed'
  if not same then
    if field == 'paused' then
      emit_queue(value == 0 and 'resumed' or 'paused', now, by, '[]', why)
    else
      emit_queue('policy_changed', now, by, '["' .. field .. '","' .. old .. '","' .. value .. '"]', why)
    end
    set_fact(field, value)
    if field == 'fair' and value == 1 then
      -- Ages become virtual times, or virtual times become ages. A lane that came first so far still comes first.
      set_fact('fair_clock', math.max(fact('fair_clock'), fact('sequence')))
    elseif field == 'fair' then
      set_fact('sequence', math.max(fact('sequence'), fact('fair_top')))
    end
  end
end
wake_if_gate_opens()
return close_call(answer)
